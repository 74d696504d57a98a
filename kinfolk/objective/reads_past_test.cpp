// Members whose later tokens decide which earlier ones are met, but are not read: next tokens are trained.
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/reads_past.h"
#include "kinfolk/nn/testing.h"
#include "kinfolk/objective/causal.h"

namespace kinfolk {
namespace {

TEST(ReadsPast, NextTokensAreTrainedWhereNoLaterValueIsRead) {
  for (const char* name : {"reformer", "routing"}) {
    const auto model = tiny(name);
    EXPECT_FALSE(model->traits().causal) << name;
    EXPECT_TRUE(reads_past_alone(*model)) << name;
    const Batch batch = random_batch(2, 20, 29);
    Pass pass{batch};
    const Loss loss = Causal({}).loss(*model, pass);
    EXPECT_TRUE(loss.sum.isfinite().item<bool>()) << name;

    Recipe both_ways = load_recipe(name);
    override_recipe(both_ways, "layers.0.branches.0.causal=false");
    const auto sees = Model::make(both_ways, tiny_size());
    EXPECT_FALSE(reads_past_alone(*sees)) << name;
    Pass again{batch};
    EXPECT_THROW(Causal({}).loss(*sees, again), Error) << name;
  }
  EXPECT_FALSE(reads_past_alone(*tiny("rope"))) << "causal altogether";
  EXPECT_FALSE(reads_past_alone(*tiny("prefix_lm")));
}

}  // namespace
}  // namespace kinfolk
