// Runs that end before their time: signals, a kill, a full disk. Each happens in a child process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/train/training_testing.h"

namespace kinfolk {
namespace {

using namespace testing_runs;

class Stopped : public testing::Test {
 protected:
  // The child starts this program anew: a forked one could not run backward.
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  static TrainHooks signal_at(int64_t step, std::vector<int> signals) {
    TrainHooks hooks;
    hooks.on_step = [=](int64_t now) {
      if (now == step)
        for (const int signal : signals) raise(signal);
      return false;
    };
    return hooks;
  }
  static void expect_same_weights(const std::string& a, const std::string& b) {
    const TensorFile x = read_tensors(checkpoint_of(a)), y = read_tensors(checkpoint_of(b));
    ASSERT_EQ(x.tensors.size(), y.tensors.size());
    for (const auto& [name, tensor] : x.tensors) EXPECT_TRUE(tensor.equal(y.tensors.at(name))) << name;
  }
};

TEST_F(Stopped, FirstSignalSavesAndEnds) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Folder folder("signal" + std::to_string(signal));
    const auto done = run("transformer_xl", small_settings(5), folder / "a", signal_at(2, {signal}));
    EXPECT_FALSE(done.finished);
    EXPECT_EQ(done.signal, signal);
    EXPECT_EQ(done.exit_status(), 128 + signal);
    EXPECT_EQ(load_run(folder / "a").record.point.step, 2);
    TrainHooks hooks;
    hooks.resume = true;
    EXPECT_TRUE(run("transformer_xl", small_settings(5), folder / "a", hooks).finished);
    run("transformer_xl", small_settings(5), folder / "whole");
    expect_same_weights(folder / "a", folder / "whole");
  }
}

TEST_F(Stopped, SecondSignalEndsAtOnce) {
  const Folder folder("second_signal");
  EXPECT_EXIT(run("rope", small_settings(5), folder / "a", signal_at(2, {SIGINT, SIGINT})),
              testing::KilledBySignal(SIGINT), "");
}

TEST_F(Stopped, KilledRunGoesOnFromItsLastCheckpoint) {
  const Folder folder("killed");
  TrainSettings settings = small_settings(8);
  settings.save_every = 3;
  EXPECT_EXIT(run("transformer_xl", settings, folder / "killed", signal_at(5, {SIGKILL})),
              testing::KilledBySignal(SIGKILL), "");
  EXPECT_EQ(load_run(folder / "killed").record.point.step, 3);
  EXPECT_EQ(read_log(folder / "killed/log.jsonl").back().step, 5);
  TrainHooks hooks;
  hooks.resume = true;
  EXPECT_TRUE(run("transformer_xl", settings, folder / "killed", hooks).finished);
  run("transformer_xl", settings, folder / "whole");
  expect_same_weights(folder / "killed", folder / "whole");
  const auto a = read_log(folder / "killed/log.jsonl"), b = read_log(folder / "whole/log.jsonl");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].loss, b[i].loss) << a[i].step;
}

/// Trains with room for the log but not for a checkpoint from the third step on.
void fill_the_disk(const std::string& out) {
  TrainSettings settings = small_settings(8);
  settings.save_every = 2;
  TrainHooks hooks;
  hooks.on_step = [](int64_t step) {
    const rlimit limit = {20000, 20000};
    if (step == 3) setrlimit(RLIMIT_FSIZE, &limit);
    return false;
  };
  try {
    run("rope", settings, out, hooks);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(1);
  }
}

TEST_F(Stopped, FullDiskKeepsTheOldCheckpoint) {
  const Folder folder("full_disk");
  EXPECT_EXIT(fill_the_disk(folder / "a"), testing::ExitedWithCode(1),
              "safetensors: expected room to write it; found File too large");
  EXPECT_EQ(load_run(folder / "a").record.point.step, 2);
  int64_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "a/checkpoints")) {
    left += entry.path().extension() != ".safetensors";
  }
  EXPECT_EQ(left, 0);
  TrainSettings settings = small_settings(8);
  settings.save_every = 2;
  TrainHooks hooks;
  hooks.resume = true;
  EXPECT_TRUE(run("rope", settings, folder / "a", hooks).finished);
}

}  // namespace
}  // namespace kinfolk
