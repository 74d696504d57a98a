#include "kinfolk/train/progress.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

struct ProgressTest : testing::Test {
  std::string shown;
  Progress::Clock::time_point time{};
  Progress::Screen screen(bool terminal, int64_t columns = 120) {
    Progress::Screen screen;
    screen.terminal = terminal;
    screen.columns = columns;
    screen.write = [this](const std::string& bytes) { shown += bytes; };
    screen.now = [this] { return time; };
    return screen;
  }
  void pass(double seconds) {
    time += std::chrono::duration_cast<Progress::Clock::duration>(std::chrono::duration<double>(seconds));
  }
  std::string fresh() { return std::exchange(shown, ""); }
};

TEST_F(ProgressTest, TerminalLineIsRedrawnAndCleared) {
  {
    Progress progress("train rerope", 200, screen(true));
    pass(60);
    progress.update(50, "loss 1.63");
    EXPECT_EQ(fresh(), "\r\033[Ktrain rerope  [#####---------------]   25 %  1:00, 3:00 left  loss 1.63");
    pass(0.05);
    progress.update(51);
    EXPECT_EQ(fresh(), "");
    pass(3540);
    progress.update(200);
    EXPECT_EQ(fresh(), "\r\033[Ktrain rerope  [####################]  100 %  1:00:00");
  }
  EXPECT_EQ(fresh(), "\r\033[K");
}

TEST_F(ProgressTest, PlainLinesAreRare) {
  Progress progress("eval", 10, screen(false));
  for (int i = 0; i < 99; ++i, pass(0.1)) progress.update(i * 0.1);
  EXPECT_EQ(fresh(), "");
  pass(0.2);
  progress.update(5, "two\nlines");
  EXPECT_EQ(fresh(), "eval   50 %  0:10, 0:10 left  two lines\n");
  progress.finish();
  EXPECT_EQ(fresh(), "");
}

TEST_F(ProgressTest, NarrowTerminalCutsWholeCharacters) {
  Progress progress("\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9", 0, screen(true, 5));
  progress.update(1, "note");
  EXPECT_EQ(fresh(), "\r\033[K\u00e9\u00e9\u00e9\u00e9");
}

TEST_F(ProgressTest, MessagesInBetween) {
  Progress progress("train", 0, screen(true));
  progress.update(1);
  progress.say("saved");
  progress.update(2, "n");
  EXPECT_EQ(fresh(), "\r\033[Ktrain  0:00\r\033[Ksaved\n\r\033[Ktrain  0:00  n");
}

TEST_F(ProgressTest, ResumedJobsJudgeTheirOwnSpeed) {
  Progress progress("train", 100, screen(true));
  progress.start_at(80);
  pass(10);
  progress.update(90);
  EXPECT_NE(fresh().find("0:10, 0:10 left"), std::string::npos);
}

TEST(ClockText, Forms) {
  EXPECT_EQ(clock_text(7.4), "0:07");
  EXPECT_EQ(clock_text(750), "12:30");
  EXPECT_EQ(clock_text(11045), "3:04:05");
  EXPECT_EQ(clock_text(-1), "?");
}

}  // namespace
}  // namespace kinfolk
