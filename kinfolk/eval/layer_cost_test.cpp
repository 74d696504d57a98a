#include "kinfolk/eval/layer_cost.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

Size small(int64_t context) {
  Size size;
  size.width = 16, size.heads = 2, size.feed = 32, size.context = context;
  return size;
}

TEST(LayerCost, EveryRecipeRuns) {
  at::manual_seed(1);
  for (const auto& name : recipe_names()) {
    SCOPED_TRACE(name);
    std::vector<LayerCost> layers;
    layers.emplace_back(load_recipe(name), small(32));
    const auto costs = measure_layers(layers, 32, 16, {.seconds = 0, .least = 1, .shortest = 0}, {});
    EXPECT_EQ(costs[0].length, 32);
    EXPECT_GT(costs[0].seconds, 0);
    EXPECT_EQ(costs[0].rounds, 1);
  }
}

/// A layer whose pattern lets nothing be seen costs its projections alone, and dense attention the more the longer.
TEST(LayerCost, DenseAttentionGrowsFasterThanItsProjections) {
  Recipe nothing = load_recipe("rope");
  override_recipe(nothing, "layers.0.branches.0.pattern=distance(context, any)");
  std::vector<LayerCost> layers;
  layers.emplace_back(load_recipe("rope"), small(2048));
  layers.emplace_back(nothing, small(2048));
  std::vector<size_t> order;
  const auto costs =
      measure_layers(layers, 2048, 16, {.seconds = 0, .least = 3}, [&](size_t i) { order.push_back(i); });
  EXPECT_GT(costs[0].seconds, 2 * costs[1].seconds);
  EXPECT_EQ(order[0], 0u);
  EXPECT_EQ(order[1], 1u);
  EXPECT_EQ(costs[1].rounds, 3);
}

}  // namespace
}  // namespace kinfolk
