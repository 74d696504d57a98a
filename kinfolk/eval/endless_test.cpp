#include "kinfolk/eval/endless.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

TEST(Endless, BoundedMembersReadOnAtTheSameCost) {
  for (const char* name : {"window", "transformer_xl", "deltanet", "hwfa"}) {
    SCOPED_TRACE(name);
    const auto model = tiny(name);
    model->eval();
    EndlessOptions options;
    options.tokens = 6000, options.chunk = 64, options.early = 1000, options.tail = 300, options.seconds = 0.05;
    options.twice = true;
    if (model->most_bytes(1) < 0) options.memory_limit = model->most_bytes(1, 40);
    const Endless found = read_endless(*model, options);
    EXPECT_EQ(found.tokens, 6000);
    EXPECT_GT(found.read, 0);
    EXPECT_LE(found.state_bytes, found.most_bytes);
    EXPECT_LE(found.drift, 1e-4);
    EXPECT_GE(found.drift_twice, 0);
    EXPECT_LE(found.drift_twice, 1e-4);
    EXPECT_GT(found.early_step, 0);
    EXPECT_NEAR(found.ratio, 1, 0.5);
  }
}

TEST(Endless, AShortTextHasASpeedToo) {
  const auto model = tiny("window");
  model->eval();
  for (const int64_t tokens : {2, 70, 200}) {  // of which the last half and more are read in other pieces
    EndlessOptions options;
    options.tokens = tokens, options.seconds = 0.01;
    EXPECT_GT(read_endless(*model, options).read, 0) << tokens;
  }
}

TEST(Endless, AStateThatGrowsWantsALimit) { EXPECT_THROW(read_endless(*tiny("rope"), {.tokens = 100}), UsageError); }

}  // namespace
}  // namespace kinfolk
