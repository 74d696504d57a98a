#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

int64_t count(const Recipe& recipe, const Size& size) {
  return Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta))->parameter_count();
}

TEST(Budget, KeepsDepthHeadsAndTheFeedsShare) {
  const Recipe recipe = load_recipe("rope");
  for (const int64_t budget : {400'000, 1'000'000, 4'000'000, 20'000'000}) {
    const Size size = solve_budget(recipe, load_size("tiny"), budget);
    EXPECT_EQ(size.depth, 4);
    EXPECT_EQ(size.heads, 4);
    EXPECT_EQ(size.width % 32, 0);
    EXPECT_NEAR(static_cast<double>(count(recipe, size)), static_cast<double>(budget),
                0.01 * static_cast<double>(budget));
    const double share = static_cast<double>(size.feed) / static_cast<double>(size.width);
    EXPECT_GT(share, 1.5) << budget;
    EXPECT_LT(share, 8) << budget;
  }
}

TEST(Budget, TheCountIsThatOfARealModel) {
  const Recipe recipe = load_recipe("gpt");
  const Size size = solve_budget(recipe, load_size("tiny"), 600'000);
  int64_t sum = 0;
  for (const auto& [name, weight] : Model::make(recipe, size)->weights()) sum += weight.numel();
  EXPECT_EQ(sum, count(recipe, size));
}

TEST(Budget, WhatCannotBeIsRefusedWithTheSmallest) {
  const Recipe recipe = load_recipe("rope");
  Size size = load_size("tiny");
  Size least = size;
  least.width = 32, least.feed = 1;
  try {
    solve_budget(recipe, size, 10'000);
    FAIL();
  } catch (const Error& error) {
    const std::string words = error.what();
    EXPECT_NE(words.find(text("at least ", count(recipe, least), "; found 10000")), std::string::npos) << words;
  }
  EXPECT_EQ(solve_budget(recipe, size, count(recipe, least)).width, 32);
  EXPECT_THROW(solve_budget(recipe, size, 0), UsageError);
  // Embeddings count: a large vocabulary alone exceeds the budget.
  size.vocabulary = 1'000'000;
  EXPECT_THROW(solve_budget(recipe, size, 1'000'000), Error);
}

TEST(Budget, LargeModelsCostNoMemory) {
  const Size size = solve_budget(load_recipe("rope"), load_size("base"), 5'000'000'000);
  EXPECT_NEAR(static_cast<double>(count(load_recipe("rope"), size)), 5e9, 5e7);
}

}  // namespace
}  // namespace kinfolk
