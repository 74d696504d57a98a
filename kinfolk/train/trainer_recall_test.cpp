// Training on a task: whole examples, nothing carried between them, the share of right answers, a bit-equal resume.
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/train/answers.h"
#include "kinfolk/train/data/recall.h"
#include "kinfolk/train/score_recall.h"
#include "kinfolk/train/training_testing.h"

namespace kinfolk {
namespace {

using namespace testing_runs;

constexpr const char* kTask = "recall:mqar,vocabulary=18,length=16,pairs=2,power=1";

TrainResult train_task(const std::string& name, const TrainSettings& settings, const std::string& out,
                       const std::string& task = kTask, TrainHooks hooks = {}) {
  hooks.quiet = true;
  return train(load_recipe(name), small_size(), settings, recall_corpus(task), out, hooks);
}

class TrainsRecall : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Members, TrainsRecall, testing::Values("rope", "deltanet", "mamba", "transformer_xl"),
                         [](const auto& info) { return info.param; });

TEST_P(TrainsRecall, AResumedRunIsBitEqual) {
  const Folder folder("recall_" + GetParam());
  const TrainSettings settings = small_settings(7);
  const TrainResult whole = train_task(GetParam(), settings, folder / "whole");
  EXPECT_TRUE(whole.finished);
  EXPECT_EQ(whole.record.size.vocabulary, 18);
  EXPECT_EQ(whole.record.size.context, 16);
  train_task(GetParam(), settings, folder / "parts", kTask, stop_at(3));
  TrainHooks on;
  on.resume = true;
  const TrainResult parts = train_task(GetParam(), settings, folder / "parts", kTask, on);
  const auto x = whole.model->weights(), y = parts.model->weights();
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(x[i].second.equal(y[i].second)) << x[i].first;
  ASSERT_FALSE(whole.validations.empty());
  EXPECT_EQ(whole.validations.back().accuracy, parts.validations.back().accuracy);
  EXPECT_THROW(train_task(GetParam(), settings, folder / "parts", "recall:mqar,vocabulary=18,length=16,pairs=3", on),
               UsageError);
}

TEST(TrainRecall, LearnsToAnswer) {
  const Folder folder("recall_learn");
  TrainSettings settings = small_settings(150);
  settings.lanes = 32, settings.tokens = 150 * 32 * 12, settings.length = 12, settings.eval_every = 0;
  settings.eval_tokens = 4096;
  const TrainResult result = train_task("rope", settings, folder / "run", "recall:induction,vocabulary=4,length=12");
  ASSERT_GE(result.validations.size(), 2U);
  const LogRow &first = result.validations.front(), &last = result.validations.back();
  EXPECT_LT(first.accuracy, 0.6);
  EXPECT_GT(last.accuracy, first.accuracy + 0.2);
  EXPECT_LT(last.bits, first.bits);
  // The same held-out examples, one by one.
  const RecallTask task = read_recall("recall:induction,vocabulary=4,length=12");
  const RecallScore score = score_recall(*result.model, task, 10 * 32);
  EXPECT_EQ(score.answers, 320);
  EXPECT_NEAR(score.accuracy, last.accuracy, 0.03);
  EXPECT_LT(score.error, 0.03);
  // Longer examples than those of the training, too; but no other tokens.
  EXPECT_EQ(score_recall(*result.model, read_recall("recall:induction,vocabulary=4,length=40"), 4).examples, 4);
  EXPECT_THROW(score_recall(*result.model, read_recall("recall:induction,vocabulary=5,length=12"), 4), UsageError);
}

TEST(TrainRecall, TheAnswersAreCountedAsTheyAre) {
  const auto model = Model::make(load_recipe("rope"), size_for(small_size(), read_recall(kTask)));
  model->eval();
  const RecallTask task = read_recall(kTask);
  const RecallExamples source(task, held_out_seed(task), 8);
  const Batch batch = source.at(0, 16);
  Answers got;
  add_answers(got, *model, batch);
  const Tensor scores = model->score(batch), target = batch.fact("target");
  int64_t count = 0, right = 0;
  double loss = 0;
  for (int64_t b = 0; b < 8; ++b)
    for (int64_t t = 0; t < 16; ++t) {
      const auto wanted = target[b][t].item<int64_t>();
      if (wanted == -100) continue;
      count++, right += scores[b][t].argmax().item<int64_t>() == wanted;
      loss -= scores[b][t].log_softmax(0)[wanted].item<double>();
    }
  EXPECT_EQ(got.count, count);
  EXPECT_EQ(got.count, 16);
  EXPECT_EQ(got.right, right);
  EXPECT_NEAR(got.loss, loss, 1e-4 * loss);
  const RecallScore score = score_recall(*model, task, 8);  // the same examples
  EXPECT_EQ(score.answers, got.count);
  EXPECT_EQ(score.accuracy, got.accuracy());
  EXPECT_NEAR(score.bits, loss / 16 / std::log(2.0), 1e-4 * score.bits);
}

}  // namespace
}  // namespace kinfolk
