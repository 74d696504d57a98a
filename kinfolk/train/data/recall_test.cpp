// Tasks of recall: the golden examples, the rules they must keep, the source, what is refused.
#include "kinfolk/train/data/recall.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "kinfolk/core/errors.h"
#include "kinfolk/reference/golden.h"
#include "kinfolk/train/settings.h"

namespace kinfolk {
namespace {

RecallTask task_of(const nlohmann::json& one) {
  const std::string kind = one.at("task");
  std::string words = "recall:" + kind;
  for (const auto& [key, value] : one.at("config").items()) {
    words += "," + (key == "vocab" ? "vocabulary" : key) + "=" + value.dump();
  }
  return read_recall(words);
}

TEST(Recall, GoldenExamples) {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden::folder() + "/recurrent/tasks")) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream in(entry.path());
    const auto one = nlohmann::json::parse(in);
    const RecallTask task = task_of(one);
    const auto inputs = one.at("inputs").get<std::vector<std::vector<int64_t>>>(),
               targets = one.at("targets").get<std::vector<std::vector<int64_t>>>();
    for (size_t i = 0; i < inputs.size(); i++) {
      const RecallExample got = recall_example(task, one.at("seed").get<uint64_t>(), i);
      EXPECT_EQ(got.tokens, inputs[i]) << entry.path() << " example " << i;
      EXPECT_EQ(got.target, targets[i]) << entry.path() << " example " << i;
    }
    cases++;
  }
  EXPECT_GE(cases, 6);
}

TEST(Recall, EveryKeyIsAskedForOnceAndHasOneValue) {
  const RecallTask task = read_recall("recall:mqar,vocabulary=128,length=64,pairs=16,power=1");
  for (uint64_t i = 0; i < 200; i++) {
    const RecallExample e = recall_example(task, 3, i);
    std::map<int64_t, int64_t> value;
    for (size_t p = 0; p < 32; p += 2) value[e.tokens[p]] = e.tokens[p + 1];
    EXPECT_EQ(value.size(), 16U);
    std::set<int64_t> asked;
    for (size_t t = 0; t < 64; t++) {
      if (e.target[t] == -100) continue;
      EXPECT_GE(t, 32U);
      EXPECT_EQ(e.target[t], value.at(e.tokens[t]));
      EXPECT_TRUE(asked.insert(e.tokens[t]).second);
    }
    EXPECT_EQ(asked.size(), 16U);
  }
}

TEST(Recall, DistanceLiesBetweenPairsAndQuestions) {
  for (const bool varied : {false, true}) {
    const RecallTask task =
        read_recall(text("recall:distance,pairs=3,distance=60,vocabulary=16,varied=", varied ? "true" : "false"));
    ASSERT_EQ(task.length(), 72);
    int64_t nearest = 60, farthest = 0;
    for (uint64_t i = 0; i < 200; i++) {
      const RecallExample e = recall_example(task, 1, i);
      ASSERT_EQ(e.tokens.size(), 72U);
      std::map<int64_t, int64_t> told;
      size_t last = 0;
      for (size_t t = 0; t + 6 < 72; t++) {
        EXPECT_EQ(e.target[t], -100);
        if (e.tokens[t] < 4 || e.tokens[t] >= 8) continue;
        told[e.tokens[t]] = e.tokens[t + 1], last = t + 1;
        EXPECT_GE(e.tokens[t + 1], 8);
      }
      ASSERT_EQ(told.size(), 3U);
      const auto noise = static_cast<int64_t>(66 - last) - 1;
      nearest = std::min(nearest, noise), farthest = std::max(farthest, noise);
      for (size_t t = 66; t < 72; t += 2) {
        EXPECT_EQ(e.target[t], told.at(e.tokens[t]));
        EXPECT_EQ(e.tokens[t + 1], e.target[t]);
        EXPECT_EQ(e.target[t + 1], -100);
      }
    }
    EXPECT_GE(farthest, varied ? 50 : 60);
    EXPECT_LE(farthest, 60);
    if (varied) EXPECT_LE(nearest, 2);
    if (!varied) EXPECT_EQ(nearest, 60);
  }
}

TEST(Recall, ThePositionDecidesTheBatch) {
  const RecallTask task = read_recall("recall:induction,length=32,vocabulary=8,examples=10");
  const RecallExamples source(task, 1, 4);
  EXPECT_TRUE(source.whole());
  const Batch one = source.at(32, 32), again = source.at(32, 32), later = source.at(32 * 6, 32);
  EXPECT_TRUE(one.tokens.equal(again.tokens));
  EXPECT_TRUE(one.fact("target").equal(again.fact("target")));
  EXPECT_EQ(one.tokens.sizes(), (at::IntArrayRef{4, 32}));
  // Ten examples in turn: those of step 6 begin with number 24, which is 4 again, where step 1 began.
  EXPECT_TRUE(one.tokens.equal(later.tokens));
  EXPECT_FALSE(one.tokens.equal(RecallExamples(task, held_out_seed(task), 4).at(32, 32).tokens));
  EXPECT_THROW(source.at(5, 32), Error);
  EXPECT_THROW(source.at(0, 31), Error);
}

TEST(Recall, TheWordsOfATaskSayIt) {
  for (const std::string words :
       {"recall:mqar", "recall:mqar,pairs=8,length=64,fill=true,power=0.5", "recall:selective_copy,noise=24,data=8",
        "recall:induction,vocabulary=32", "recall:distance,distance=100,varied=true"}) {
    const std::string all = read_recall(words).words();
    EXPECT_EQ(read_recall(all).words(), all);
  }
  const Corpus corpus = recall_corpus("recall:mqar,pairs=8");
  EXPECT_EQ(corpus.recall.mqar.pairs, 8);
  EXPECT_STREQ(corpus.unit(), "answer");
  EXPECT_NE(corpus.train.fingerprint(), recall_corpus("recall:mqar,pairs=9").train.fingerprint());
  EXPECT_FALSE(holds_recall("recall.txt"));
}

TEST(Recall, RefusesWhatIsNotATask) {
  const auto fault = [](const std::string& words) {
    try {
      read_recall(words);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  const auto says = [&](const std::string& words, const std::string& part) {
    EXPECT_NE(fault(words).find(part), std::string::npos) << words << ": " << fault(words);
  };
  says("recall:mqra", "did you mean mqar");
  says("recall:mqar,piars=4", "did you mean pairs");
  says("recall:mqar,pairs", "KEY=VALUE");
  says("recall:mqar,pairs=four", "a number");
  says("recall:mqar,pairs=4.5", "a number");
  says("recall:mqar,fill=yes", "true or false");
  says("recall:mqar,pairs=0", "at least 1");
  says("recall:mqar,pairs=4,pairs=5", "twice");
  says("recall:mqar,pairs=17,length=64", "4 x 17");
  says("recall:mqar,length=63", "even");
  says("recall:mqar,length=64,vocabulary=64", "vocabulary above");
  says("recall:induction,pairs=4", "known:");
  says("recall:distance,vocabulary=30", "divisible by 4");
  says("recall:distance,pairs=17", "4 x 17");
}

TEST(Recall, TheTaskDecidesTheSizes) {
  Size size;
  const Size got = size_for(size, read_recall("recall:selective_copy,vocabulary=20,noise=30,data=5"));
  EXPECT_EQ(got.vocabulary, 20);
  EXPECT_EQ(got.context, 40);
  EXPECT_EQ(size_for(size, RecallTask{}).vocabulary, size.vocabulary);
  TrainSettings settings;
  settings.length = 39;
  EXPECT_THROW(recall_source(read_recall("recall:induction,length=40"), settings), UsageError);
}

}  // namespace
}  // namespace kinfolk
