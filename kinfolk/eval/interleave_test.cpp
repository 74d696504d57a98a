#include "kinfolk/eval/interleave.h"

#include <gtest/gtest.h>

#include <string>

namespace kinfolk {
namespace {

/// A run that takes this much CPU time.
std::function<void()> spend(double seconds) {
  return [seconds] {
    for (const double until = cpu_seconds() + seconds; cpu_seconds() < until;) continue;
  };
}

TEST(Interleave, MedianIsTheMiddleOne) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 3);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({}), 0);
}

TEST(Interleave, TurnsAlternate) {
  std::string order;
  Turns turns;
  turns.least = 3, turns.most = 3, turns.shortest = 0;
  interleave({[&] { order += 'A'; }, [&] { order += 'B'; }}, turns);
  EXPECT_EQ(order, "ABABABAB");
}

TEST(Interleave, SettledTurnsBeginWithARunThatIsNotTimed) {
  std::string order;
  Turns turns;
  turns.least = 2, turns.most = 2, turns.shortest = 0, turns.settle = true;
  const Interleaved got = interleave({[&] { order += 'A'; }, [&] { order += 'B'; }}, turns);
  EXPECT_EQ(order, "ABAABBAABB");
  EXPECT_EQ(got.rounds(), 2);
}

TEST(Interleave, RatioAndTimesOfWhatTakesThreeTimesAsLong) {
  Turns turns;
  turns.seconds = 0.1;
  const Interleaved got = interleave({spend(1e-3), spend(3e-3)}, turns);
  EXPECT_GE(got.rounds(), 3);
  EXPECT_NEAR(got.ratio(1, 0), 3, 0.5);
  EXPECT_NEAR(got.ratio(0, 1), 1.0 / 3, 0.1);
  EXPECT_NEAR(got.time(0), 1e-3, 0.3e-3);
}

TEST(Interleave, ShortRunsAreRepeatedAndLongOnesAreRunOnce) {
  int64_t count = 0;
  Turns turns;
  turns.seconds = 0.02, turns.shortest = 1e-3, turns.least = 3;
  interleave({[&] { ++count, spend(1e-5)(); }}, turns);
  EXPECT_GT(count, 100);

  count = 0;
  turns.once = 1e-3;
  const Interleaved once = interleave({[&] { ++count, spend(5e-3)(); }}, turns);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(once.rounds(), 1);
  EXPECT_NEAR(once.time(0), 5e-3, 1e-3);
}

TEST(Interleave, NotesTellHowFarItIs) {
  Turns turns;
  turns.least = 2, turns.most = 2, turns.shortest = 0;
  std::vector<int64_t> done;
  turns.note = [&](int64_t turn, int64_t rounds) {
    EXPECT_EQ(rounds, 2);
    done.push_back(turn);
  };
  interleave({spend(1e-5), spend(1e-5)}, turns);
  EXPECT_EQ(done, (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(Interleave, CpuTimeIsNotWallTime) {
  const double cpu = cpu_seconds(), wall = wall_seconds();
  timespec pause{0, 20000000};
  nanosleep(&pause, nullptr);
  EXPECT_GE(wall_seconds() - wall, 0.019);
  EXPECT_LT(cpu_seconds() - cpu, 0.015);
}

}  // namespace
}  // namespace kinfolk
