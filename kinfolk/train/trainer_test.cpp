#include "kinfolk/train/trainer.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/train/training_testing.h"

namespace kinfolk {
namespace {

using namespace testing_runs;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

/// All that a checkpoint holds but the time it took.
void expect_equal_checkpoints(const std::string& a, const std::string& b) {
  const TensorFile x = read_tensors(checkpoint_of(a)), y = read_tensors(checkpoint_of(b));
  ASSERT_EQ(x.tensors.size(), y.tensors.size());
  for (const auto& [name, tensor] : x.tensors) {
    ASSERT_TRUE(y.tensors.count(name)) << name;
    EXPECT_TRUE(tensor.equal(y.tensors.at(name))) << name;
  }
  auto p = load_run(a).record.point, q = load_run(b).record.point;
  p.seconds = q.seconds = 0;
  EXPECT_EQ(write_toml(write_options(p)), write_toml(write_options(q)));
}

void expect_equal_logs(const std::string& a, const std::string& b) {
  auto x = read_log(a), y = read_log(b);
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    for (LogRow* row : {&x[i], &y[i]}) row->seconds = row->tokens_per_second = 0, row->peak_rss = 0;
    EXPECT_EQ(to_json(x[i]), to_json(y[i]));
  }
}

class Resumed : public testing::TestWithParam<const char*> {};

TEST_P(Resumed, IsBitEqualToTheRunThatNeverStopped) {
  const Folder folder(std::string("resume_") + GetParam());
  TrainSettings settings = small_settings(6);
  settings.dropout = 0.1;
  settings.log_every = 2;  // stopped in the middle of a row
  settings.accumulate = 2;
  const auto whole = run(GetParam(), settings, folder / "whole");
  EXPECT_TRUE(whole.finished);
  const auto half = run(GetParam(), settings, folder / "parts", stop_at(3));
  EXPECT_FALSE(half.finished);
  EXPECT_EQ(half.exit_status(), 1);
  EXPECT_EQ(half.record.point.step, 3);
  const auto rest = run(GetParam(), settings, folder / "parts", stop_at(-1, true));
  EXPECT_TRUE(rest.finished);
  EXPECT_EQ(rest.record.point.step, 6);
  EXPECT_EQ(rest.validations.size(), 3u);  // steps 0, 4, 6
  expect_equal_checkpoints(folder / "whole", folder / "parts");
  expect_equal_logs(folder / "whole/log.jsonl", folder / "parts/log.jsonl");
}

INSTANTIATE_TEST_SUITE_P(Members, Resumed, testing::Values("gpt", "rope", "transformer_xl", "lstm", "universal"));

TEST(Trainer, CarriedStateIsSavedAndUsed) {
  const Folder folder("carried");
  run("transformer_xl", small_settings(3), folder / "a");
  int64_t states = 0;
  for (const auto& [name, tensor] : read_tensors(checkpoint_of(folder / "a")).tensors)
    states += name.starts_with("state.0/");
  EXPECT_GT(states, 0);
  const auto fresh = run("rope", small_settings(3), folder / "b");
  for (const auto& [name, tensor] : read_tensors(fresh.checkpoint).tensors)
    EXPECT_FALSE(name.starts_with("state.")) << name;
}

TEST(Trainer, LearnsAndRepeatsBySeed) {
  const Folder folder("learns");
  TrainSettings settings = small_settings(60);
  settings.length = 32;
  settings.eval_every = 0;
  const auto a = run("rope", settings, folder / "a"), b = run("rope", settings, folder / "b");
  ASSERT_EQ(a.validations.size(), 2u);
  EXPECT_GT(a.validations[0].bits, 7);
  EXPECT_LT(a.validations[1].bits, 4);
  expect_equal_checkpoints(folder / "a", folder / "b");
  settings.seed = 2;
  EXPECT_NE(run("rope", settings, folder / "c").validations[1].bits, a.validations[1].bits);
  EXPECT_NE(draw_seed(1, 2, 3), draw_seed(1, 3, 2));
}

TEST(Trainer, PartsOfAStepChangeNothingButRounding) {
  const Folder folder("parts");
  for (const char* member : {"rope", "transformer_xl"}) {
    std::vector<double> bits;
    for (const int64_t parts : {1, 2, 4}) {
      TrainSettings settings = small_settings(5);
      settings.accumulate = parts;
      bits.push_back(run(member, settings, folder / (member + std::to_string(parts))).validations.back().bits);
    }
    EXPECT_NEAR(bits[0], bits[1], 1e-4) << member;
    EXPECT_NEAR(bits[0], bits[2], 1e-4) << member;
  }
}

TEST(Trainer, RecomputationChangesNothing) {
  const Folder folder("recompute");
  TrainSettings settings = small_settings(4);
  settings.dropout = 0.1;
  for (const char* precision : {"float32", "bf16"}) {
    settings.precision = precision;
    settings.checkpointing = false;
    const auto plain = run("rope", settings, folder / (std::string("plain") + precision));
    settings.checkpointing = true;
    const auto again = run("rope", settings, folder / (std::string("again") + precision));
    EXPECT_NEAR(plain.validations.back().bits, again.validations.back().bits, 1e-5) << precision;
  }
}

class Mixed : public testing::TestWithParam<std::string> {};

TEST_P(Mixed, PrecisionFollowsFloat32) {
  const Folder folder("bf16_" + GetParam());
  TrainSettings settings = small_settings(8);
  settings.learning_rate = 2e-3;  // at 1e-2 eight steps from random weights magnify any rounding
  const auto full = run(GetParam(), settings, folder / "full");
  settings.precision = "bf16";
  const auto mixed = run(GetParam(), settings, folder / "mixed");
  EXPECT_NEAR(mixed.validations.back().bits, full.validations.back().bits, 0.05);
  EXPECT_NE(mixed.validations.back().bits, full.validations.back().bits);
  for (const auto& [name, weight] : mixed.model->weights()) EXPECT_EQ(weight.scalar_type(), at::kFloat) << name;
  EXPECT_EQ(mixed.record.point.skipped, 0);
}

INSTANTIATE_TEST_SUITE_P(Members, Mixed, testing::ValuesIn(recipe_names()));

TEST(Trainer, WorkIsThatOfWhatEachLaneCarries) {
  const Folder folder("work_carried");
  Recipe recipe = small_recipe("rope");  // causal attention, whose keys are carried beside the convolution's state
  override_recipe(recipe,
                  "layers.0.branches=[{ kind = \"short_conv\" }, { kind = \"attention\", pattern = \"causal\" }]");
  TrainSettings settings = small_settings();  // 4 lanes of 16 tokens
  TrainHooks hooks;
  hooks.quiet = true;
  const auto steps = [&](int64_t carry, int64_t count) {
    settings.carry = carry, settings.tokens = count * 64;
    return train(recipe, small_size(), settings, small_corpus(), folder / text("carry_", carry), hooks);
  };
  const auto anew = steps(16, 6);
  const auto flops = [&](int64_t carried) { return 3 * anew.model->flops(16, carried); };
  ASSERT_GT(flops(16), flops(0));
  EXPECT_DOUBLE_EQ(anew.record.point.work, 6 * 4 * flops(0));
  EXPECT_DOUBLE_EQ(steps(0, 3).record.point.work, 4 * (flops(0) + flops(16) + flops(32)));
  // Two lanes start anew at even steps, two at odd ones.
  EXPECT_DOUBLE_EQ(steps(32, 5).record.point.work, 4 * flops(0) + 4 * (2 * flops(0) + 2 * flops(16)));
}

TEST(Trainer, BudgetsEndExactlyAndAreRecorded) {
  const Folder folder("budgets");
  TrainSettings settings = small_settings();
  settings.tokens = 5 * 64 + 23;  // five steps, one of 5 tokens a lane, and 3 tokens that no whole row holds
  const auto tokens = run("rope", settings, folder / "tokens");
  EXPECT_EQ(tokens.record.point.tokens, 5 * 64 + 20);
  EXPECT_EQ(tokens.record.point.step, 6);
  EXPECT_NEAR(read_log(folder / "tokens/log.jsonl").end()[-2].rate, settings.learning_rate * settings.floor, 1e-4);

  const double each = 3 * 4 * tokens.model->flops(16);
  settings.tokens = 0;
  settings.work = 3.5 * each;
  const auto work = run("rope", settings, folder / "work");
  EXPECT_EQ(work.record.point.step, 3);
  EXPECT_DOUBLE_EQ(work.record.point.work, 3 * each);
  settings.work = 0.5 * each;
  EXPECT_NE(refusal([&] { run("rope", settings, folder / "none"); }).find("[train.work] expected at least the"),
            std::string::npos);

  settings.work = 0;
  settings.minutes = 0.3 / 60;
  const auto minutes = run("rope", settings, folder / "minutes");
  EXPECT_TRUE(minutes.finished);
  EXPECT_GE(minutes.record.point.seconds, 0.3);
  const auto rows = read_log(folder / "minutes/log.jsonl");
  EXPECT_LT(rows.end()[-3].seconds, 0.3);  // the step before the last one
}

TEST(Trainer, LeavesAFolderThatSaysWhatHappened) {
  const Folder folder("folder");
  TrainSettings settings = small_settings(10);
  settings.save_every = 2;
  settings.keep = 2;
  settings.events = true;
  std::vector<LogRow> seen;
  TrainHooks hooks;
  hooks.on_row = [&](const LogRow& row) { seen.push_back(row); };
  const auto done = run("rope", settings, folder.path(), hooks);
  std::vector<std::string> names;
  bool events = false;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoints"))
    names.push_back(entry.path().filename());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    events |= entry.path().filename().string().starts_with("events.out.tfevents.");
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"best.safetensors", "last.safetensors", "step_00000008.safetensors",
                                             "step_00000010.safetensors"}));
  EXPECT_TRUE(events);
  const auto rows = read_log(folder / "log.jsonl");
  ASSERT_EQ(rows.size(), 10u + 4u);  // validations at 0, 4, 8, 10
  ASSERT_EQ(seen.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(to_json(rows[i]), to_json(seen[i]));
  for (const auto& row : rows) {
    EXPECT_NEAR(row.bits, row.loss / std::log(2.0), 1e-12);
    EXPECT_GT(row.peak_rss, 0);
    if (!row.validation) EXPECT_GT(row.norm, 0);
  }
  EXPECT_EQ(write_toml(read_toml(folder / "recipe.toml")), write_toml(small_recipe("rope").tree));
  EXPECT_EQ(read_options<TrainSettings>(read_toml(folder / "settings.toml"), "train").keep, 2);
  EXPECT_TRUE(std::filesystem::exists(folder / "result.json"));
  EXPECT_EQ(done.exit_status(), 0);
  EXPECT_EQ(load_run(folder / "checkpoints/best.safetensors").record.point.step, done.record.point.best_step);
}

TEST(Trainer, RefusesAnotherRunsFolderAndWhatMayNotChange) {
  const Folder folder("refuses");
  const TrainSettings settings = small_settings(3);
  run("rope", settings, folder / "a");
  const std::string before = (std::ifstream(folder / "a/log.jsonl"), "");
  EXPECT_NE(refusal([&] { run("rope", settings, folder / "a"); }).find("--resume auto"), std::string::npos);

  const auto resumed = [&](const std::string& member, TrainSettings now, const Corpus& corpus = small_corpus()) {
    return refusal([&] { run(member, now, folder / "a", stop_at(-1, true), corpus); });
  };
  const std::string other = resumed("alibi", settings);
  EXPECT_NE(other.find("[resume] "), std::string::npos);
  EXPECT_NE(other.find("rope"), std::string::npos);
  EXPECT_NE(other.find("May change:"), std::string::npos);
  EXPECT_NE(other.find("learning_rate"), std::string::npos);
  TrainSettings wider = settings;
  wider.lanes = 8;
  EXPECT_NE(resumed("rope", wider).find("lanes (4 before, 8 now)"), std::string::npos);
  EXPECT_NE(resumed("rope", settings, small_corpus(7000)).find("another training text"), std::string::npos);

  TrainSettings longer = settings;
  longer.tokens *= 2;
  longer.learning_rate = 1e-3;
  EXPECT_EQ(run("rope", longer, folder / "a", stop_at(-1, true)).record.point.step, 6);
  EXPECT_EQ(run("rope", longer, folder / "new", stop_at(-1, true)).record.point.step, 6);  // nothing to resume: begins
}

TEST(Trainer, RefusesSizesAndDataThatCannotWork) {
  const Folder folder("cannot");
  TrainSettings settings = small_settings();
  settings.length = 64;
  EXPECT_NE(refusal([&] { run("gpt", settings, folder / "a"); }).find("[train.length] expected at most 16"),
            std::string::npos);
  EXPECT_NE(refusal([&] { run("rope", small_settings(), folder / "a", {}, small_corpus(20)); }).find("[data]"),
            std::string::npos);
  Size size = small_size();
  size.vocabulary = 100;
  EXPECT_NE(refusal([&] {
              train(small_recipe("rope"), size, small_settings(), small_corpus(), folder / "a", {.quiet = true});
            }).find("expected bytes below size.vocabulary = 100; found 1"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));  // nothing was left behind
}

TEST(Trainer, EndsWhenGradientsStayNotFinite) {
  const Folder folder("diverges");
  TrainSettings settings = small_settings(50);
  settings.learning_rate = 1e30;
  settings.warmup = 0;
  settings.bad_steps = 3;
  try {
    run("rope", settings, folder / "a");
    FAIL() << "it trained";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected a finite gradient; found none in 3 steps in a row"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(read_log(folder / "a/log.jsonl").back().skipped, 3);
}

TEST(Trainer, BordersOfDocumentsReachTheModel) {
  const Folder folder("documents");
  Corpus corpus = small_corpus();
  corpus.train.documents.clear();
  for (int64_t at = 0; at < corpus.train.size(); at += 9) {
    corpus.train.documents.push_back({"", at, std::min(at + 9, corpus.train.size())});
  }
  TrainSettings settings = small_settings(2);
  const auto without = run("rope", settings, folder / "without", {}, corpus);
  settings.documents = true;
  const auto with = run("rope", settings, folder / "with", {}, corpus);
  EXPECT_NE(read_log(folder / "with/log.jsonl")[1].loss, read_log(folder / "without/log.jsonl")[1].loss);
}

}  // namespace
}  // namespace kinfolk
