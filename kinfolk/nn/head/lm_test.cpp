#include "kinfolk/nn/head/lm.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/input/tokens.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

Context context_of() {
  Context context;
  context.size = tiny_size();
  context.path = "head";
  context.like = at::TensorOptions().dtype(at::kDouble);
  return context;
}

TEST(LanguageModel, OwnTableAndBias) {
  LanguageModel::Options options;
  options.tied = false, options.bias = true;
  LanguageModel head(options, context_of());
  const at::NoGradGuard guard;
  head.named_parameters()["bias"].copy_(at::arange(29));
  const Tensor x = at::randn({2, 3, 32}, at::kDouble);
  const Batch batch;
  Pass pass{batch};
  const Tensor expected = at::einsum("bld,vd->blv", {x, head.named_parameters()["weight"]}) + at::arange(29);
  EXPECT_LT(difference(head.read(x, pass), expected), 1e-14);
  EXPECT_EQ(head.flops(7), 7 * 2.0 * 32 * 29);
}

TEST(LanguageModel, TiedToTheInput) {
  Context context = context_of();
  Tokens input({}, context);
  context.tied = input.tied();
  LanguageModel head({}, context);
  EXPECT_TRUE(head.parameters().empty());
  const Batch batch;
  Pass pass{batch};
  const Tensor x = at::randn({1, 2, 32}, at::kDouble);
  EXPECT_LT(difference(head.read(x, pass), at::matmul(x, input.tied().t())), 1e-14);
}

TEST(LanguageModel, TiedToNothingIsRefused) {
  try {
    LanguageModel head({}, context_of());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "[head.tied] expected an input with a table of tokens; found none");
  }
}

}  // namespace
}  // namespace kinfolk
