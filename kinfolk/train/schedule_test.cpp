#include "kinfolk/train/schedule.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

TEST(Schedule, RisesThenFallsToTheFloor) {
  const Schedule cosine{"cosine", 0.2, 0.1}, linear{"linear", 0.2, 0.1}, constant{"constant", 0.2, 0.1};
  for (const auto& s : {cosine, linear, constant}) {
    EXPECT_DOUBLE_EQ(s.at(0.05), 0.25);
    EXPECT_DOUBLE_EQ(s.at(0.2), 1);
  }
  EXPECT_DOUBLE_EQ(cosine.at(0.6), 0.55);
  EXPECT_DOUBLE_EQ(linear.at(0.6), 0.55);
  EXPECT_NEAR(cosine.at(0.4), 0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_DOUBLE_EQ(cosine.at(1), 0.1);
  EXPECT_DOUBLE_EQ(linear.at(7), 0.1);
  EXPECT_DOUBLE_EQ(constant.at(1), 1);
}

TEST(Schedule, NoWarmupAndOnlyWarmup) {
  EXPECT_DOUBLE_EQ((Schedule{"linear", 0, 0}.at(0)), 1);
  EXPECT_DOUBLE_EQ((Schedule{"cosine", 1, 0}.at(0.5)), 0.5);
  EXPECT_DOUBLE_EQ((Schedule{"cosine", 1, 0}.at(1)), 1);
}

}  // namespace
}  // namespace kinfolk
