#include "kinfolk/train/start_from.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"
#include "kinfolk/train/trainer.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

class StartFrom : public ::testing::Test {
 protected:
  StartFrom() {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("kinfolk_from_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "text") << [] {
      std::string text;
      for (int n = 0; n < 6000; ++n) text += "abcabd"[n % 6];
      return text;
    }();
    corpus_ = read_corpus((folder_ / "text").string());
  }
  ~StartFrom() override { fs::remove_all(folder_); }

  std::string out(const std::string& name) const { return (folder_ / name).string(); }
  static Size size() {
    Size size;
    size.depth = 2, size.width = 16, size.heads = 2, size.feed = 16, size.vocabulary = 128, size.context = 16;
    return size;
  }
  TrainResult run(const std::string& recipe, const std::string& name, const TrainHooks& more = {},
                  int64_t tokens = 256) {
    TrainSettings settings;
    settings.tokens = tokens, settings.length = 16, settings.lanes = 2, settings.events = false, settings.dropout = 0;
    TrainHooks hooks = more;
    hooks.quiet = true;
    return train(load_recipe(recipe), size(), settings, corpus_, out(name), hooks);
  }
  static std::map<std::string, Tensor> weights(const Model& model) {
    std::map<std::string, Tensor> all;
    for (const auto& item : model.named_parameters()) all[item.key()] = item.value();
    return all;
  }

  fs::path folder_;
  Corpus corpus_;
};

void expect_error(const std::function<void()>& f, const std::vector<std::string>& words) {
  try {
    f();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    for (const auto& word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST_F(StartFrom, TakesWhatHasTheSameName) {
  const auto base = run("rope", "base");
  const auto model = Model::make(load_recipe("qk_bias"), size(), 9);
  const auto drawn = weights(*Model::make(load_recipe("qk_bias"), size(), 9));
  const StartedFrom started = start_from(*model, out("base"));
  EXPECT_FALSE(started.taken.empty());
  EXPECT_FALSE(started.fresh.empty());
  EXPECT_TRUE(started.left.empty());
  const auto before = weights(*base.model), after = weights(*model);
  for (const auto& name : started.taken) EXPECT_TRUE(after.at(name).equal(before.at(name))) << name;
  for (const auto& name : started.fresh) EXPECT_TRUE(after.at(name).equal(drawn.at(name))) << name;
  const std::string words = describe(started);
  EXPECT_NE(words.find(started.fresh.front()), std::string::npos) << words;
  // The other way: what the model lacks is left out, and said.
  run("qk_bias", "more");
  const auto plain = Model::make(load_recipe("rope"), size(), 9);
  EXPECT_FALSE(start_from(*plain, out("more")).left.empty());
}

TEST_F(StartFrom, ASmallMemoryThenALargerOne) {
  Recipe recipe = load_recipe("transformer_xl");
  override_recipe(recipe, "let.memory=4");
  TrainSettings settings;
  settings.tokens = 256, settings.length = 16, settings.lanes = 2, settings.events = false, settings.dropout = 0;
  TrainHooks hooks;
  hooks.quiet = true;
  train(recipe, size(), settings, corpus_, out("small"), hooks);
  override_recipe(recipe, "let.memory=24");
  const auto model = Model::make(recipe, size(), 9);
  const StartedFrom started = start_from(*model, out("small"));
  EXPECT_TRUE(started.fresh.empty()) << describe(started);
  EXPECT_TRUE(started.left.empty()) << describe(started);
  hooks.from = out("small");
  EXPECT_TRUE(train(recipe, size(), settings, corpus_, out("large"), hooks).finished);
}

TEST_F(StartFrom, AnotherShapeIsAnErrorThatChangesNothing) {
  run("rope", "base");
  Size wide = size();
  wide.feed = 24;
  const auto model = Model::make(load_recipe("rope"), wide, 9);
  const auto drawn = weights(*Model::make(load_recipe("rope"), wide, 9));
  expect_error([&] { start_from(*model, out("base")); }, {"[from]", "weight [16, 16]", "found [11, 16]"});
  for (const auto& [name, tensor] : weights(*model)) EXPECT_TRUE(tensor.equal(drawn.at(name))) << name;
  expect_error([&] { start_from(*model, out("nowhere")); }, {"nowhere"});
}

TEST_F(StartFrom, ATrainedRunBeginsWhereTheOtherEnded) {
  const auto base = run("rope", "base", {}, 3200);
  TrainHooks hooks;
  hooks.from = out("base");
  const auto next = run("rope", "next", hooks);
  // Its first validation, before any step, is the other's last.
  EXPECT_NEAR(next.validations.front().bits, base.validations.back().bits, 1e-6);
  EXPECT_EQ(next.record.from, fs::weakly_canonical(checkpoint_of(out("base"))).string());
  EXPECT_TRUE(load_run(out("next")).record.from == next.record.from);
}

TEST_F(StartFrom, FrozenTensorsStayAndTheRestLearns) {
  const auto base = run("rope", "base");
  TrainHooks hooks;
  hooks.from = out("base"), hooks.freeze = true;
  const auto next = run("qk_bias", "next", hooks);
  const auto before = weights(*base.model), after = weights(*next.model);
  const auto drawn = weights(*Model::make(load_recipe("qk_bias"), size(), 1));
  int64_t learned = 0;
  for (const auto& [name, tensor] : after) {
    if (before.count(name)) {
      EXPECT_TRUE(tensor.equal(before.at(name))) << name;
    } else {
      learned += !tensor.equal(drawn.at(name));
    }
  }
  EXPECT_GT(learned, 0);
  EXPECT_LT(next.parameters, base.parameters);
  // A checkpoint holds the frozen tensors, and a resumed run keeps them as they are.
  const auto loaded = load_run(out("next"));
  for (const auto& [name, tensor] : weights(*loaded.model)) EXPECT_TRUE(tensor.equal(after.at(name))) << name;
  TrainHooks resume;
  resume.resume = true;
  const auto further = run("qk_bias", "next", resume, 512);
  EXPECT_TRUE(further.finished);
  for (const auto& [name, tensor] : weights(*further.model))
    if (before.count(name)) EXPECT_TRUE(tensor.equal(before.at(name))) << name;
  EXPECT_EQ(further.record.frozen, next.record.frozen);
}

TEST_F(StartFrom, WhatCannotBeMeantIsRefused) {
  run("rope", "base");
  TrainHooks all;
  all.from = out("base"), all.freeze = true;
  expect_error([&] { run("rope", "same", all); }, {"[freeze]", "nothing would learn"});
  EXPECT_FALSE(fs::exists(out("same")));
  TrainHooks alone;
  alone.freeze = true;
  expect_error([&] { run("rope", "alone", alone); }, {"[freeze]", "from"});
  // A run that goes on began from what it began from.
  TrainHooks from;
  from.from = out("base"), from.resume = true;
  const auto first = run("qk_bias", "next", from);  // nothing there yet: it starts
  EXPECT_FALSE(first.record.from.empty());
  EXPECT_TRUE(run("qk_bias", "next", from, 512).finished);
  from.from = out("next");
  expect_error([&] { run("qk_bias", "next", from, 768); }, {"[from]", "base"});
  expect_error([&] { run("rope", "base", from, 512); }, {"[from]", "nothing"});
}

}  // namespace
}  // namespace kinfolk
