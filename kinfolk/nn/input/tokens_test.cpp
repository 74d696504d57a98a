#include "kinfolk/nn/input/tokens.h"

#include <gtest/gtest.h>

#include "kinfolk/nn/tables.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

std::shared_ptr<Tokens> tokens_of(const Tokens::Options& options) {
  Context context;
  context.size = tiny_size();
  context.path = "input";
  context.like = at::TensorOptions().dtype(at::kDouble);
  context.generator = at::detail::createCPUGenerator(1);
  return std::make_shared<Tokens>(options, context);
}

TEST(Tokens, LooksUpScalesAndAddsPositions) {
  const Batch batch = random_batch(2, 5, 29);
  Pass pass{batch};
  pass.position = at::arange(5).expand({2, 5}) + 3;
  Tokens::Options options;
  const auto plain = tokens_of(options);
  const Tensor rows = plain->tied().index_select(0, batch.tokens.flatten()).reshape({2, 5, 32});
  EXPECT_TRUE(at::equal(plain->embed(pass), rows));
  EXPECT_TRUE(plain->traits().relative);

  options.scale = true, options.position = "sinusoidal";
  const auto sines = tokens_of(options);
  const Tensor scaled = sines->tied().index_select(0, batch.tokens.flatten()).reshape({2, 5, 32}) * std::sqrt(32.0);
  const Tensor table = sinusoid(pass.position, 32, 10000, "interleaved", at::TensorOptions(at::kDouble));
  EXPECT_LT(difference(sines->embed(pass), scaled + table), 1e-14);
  EXPECT_FALSE(sines->traits().relative);
  // Scaled embeddings are drawn smaller, so that what enters the first layer has unit size.
  EXPECT_NEAR(scaled.std().item<double>(), 1, 0.2);

  options = {};
  options.position = "learned";
  const auto learned = tokens_of(options);
  const Tensor both = learned->tied().index_select(0, batch.tokens.flatten()).reshape({2, 5, 32}) +
                      learned->named_parameters()["position.table"].slice(0, 3, 8);
  EXPECT_LT(difference(learned->embed(pass), both), 1e-14);
  EXPECT_EQ(learned->traits().context, 96);
}

TEST(Tokens, DropsValuesInTrainingOnly) {
  Tokens::Options options;
  options.dropout = 0.5;
  const auto input = tokens_of(options);
  const Batch batch = random_batch(4, 20, 29);
  Pass pass{batch};
  const double zeros = (input->embed(pass) == 0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(zeros, 0.5, 0.05);
  input->eval();
  EXPECT_EQ((input->embed(pass) == 0).sum().item<int64_t>(), 0);
}

}  // namespace
}  // namespace kinfolk
