#include "kinfolk/train/carry.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

TEST(Carry, EachLaneBeginsAnewOnceAPeriodInTurn) {
  const Carry carry{4096, 512, 4};  // 8 steps
  for (int64_t lane = 0; lane < 4; ++lane) {
    int64_t anew = 0;
    for (int64_t step = 1; step < 17; ++step) {
      const int64_t before = carry.steps(step - 1, lane), now = carry.steps(step, lane);
      EXPECT_TRUE(now == 0 || now == before + 1) << lane << " " << step;
      EXPECT_EQ(now == 0, (step + 2 * lane) % 8 == 0) << lane << " " << step;
      anew += now == 0;
    }
    EXPECT_EQ(anew, 2) << lane;
    EXPECT_EQ(carry.steps(0, lane), 0) << "nothing was carried before the first step";
  }
}

TEST(Carry, WithoutAnEndIsEveryStepSinceTheFirst) {
  EXPECT_EQ((Carry{0, 512, 4}.steps(77, 3)), 77);
  EXPECT_EQ((Carry{100, 512, 4}.steps(77, 3)), 0) << "a period of less than a step is one step";
}

}  // namespace
}  // namespace kinfolk
