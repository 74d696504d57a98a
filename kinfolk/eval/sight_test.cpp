#include "kinfolk/eval/sight.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/throughput.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

TEST(Sight, CausalMembersSeeNoFuture) {
  const auto model = tiny("rope", 0, at::kDouble);
  const Tensor seen = sight(*model, at::arange(40, at::kLong).remainder(29), 10);
  EXPECT_EQ(seen.sizes(), at::IntArrayRef({10, 10}));
  EXPECT_EQ(seen.triu(1).abs().max().item<double>(), 0);
  EXPECT_GT(seen.diagonal().min().item<double>(), 0);
  EXPECT_LE(seen.max().item<double>(), 1);
  EXPECT_GT(seen[9][0].item<double>(), 0);
}

TEST(Sight, AWindowSeesItsBandAlone) {
  Recipe recipe = load_recipe("window");
  override_recipe(recipe, "let.window=4");
  const Tensor expected = at::ones({12, 12}, at::kBool).tril().logical_and(at::ones({12, 12}, at::kBool).triu(-3));
  EXPECT_TRUE(sight_of(recipe, 12).equal(expected));
}

TEST(Sight, MoreCellsThanTokensIsRefused) {
  const auto model = tiny("rope");
  const Tensor tokens = at::zeros({8}, at::kLong);
  EXPECT_THROW(sight(*model, tokens, 9), Error);
  EXPECT_THROW(sight(*model, tokens, 0), Error);
  EXPECT_NO_THROW(sight(*model, tokens, 8));
}

TEST(Throughput, MeasuresEachLength) {
  const auto found = measure(*tiny("deltanet"), {16, 40}, 8);
  ASSERT_EQ(found.size(), 2u);
  for (const auto& t : found) {
    EXPECT_GT(t.train, 0);
    EXPECT_GT(t.read, 0);
    EXPECT_GT(t.decode, 0);
  }
  EXPECT_EQ(found[0].length, 16);
  EXPECT_EQ(found[0].state_bytes, found[1].state_bytes);
  EXPECT_EQ(measure(*tiny("rope"), {16}, 8, false)[0].train, 0);
  // Positions of gpt end at 96: a length needs room for the steps after it.
  EXPECT_EQ(measure(*tiny("gpt"), {96 - kDecodeSteps, 96 - kDecodeSteps + 1}).size(), 1u);
  EXPECT_THROW(measure(*tiny("rope"), {0}), UsageError);
}

}  // namespace
}  // namespace kinfolk
