#include "kinfolk/nn/feed/mlp.h"

#include <gtest/gtest.h>

#include "kinfolk/nn/feed/glu.h"

namespace kinfolk {
namespace {

Context context_of() {
  Context context;
  context.size.width = 6, context.size.feed = 9, context.size.dropout = 0.25;
  context.like = at::TensorOptions().dtype(at::kDouble);
  context.generator = at::detail::createCPUGenerator(1);
  return context;
}

double activation(const std::string& name, double x) {
  if (name == "relu") return std::max(x, 0.0);
  if (name == "silu") return x / (1 + std::exp(-x));
  if (name == "gelu") return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

Tensor set_random(const std::shared_ptr<Branch>& branch, const std::string& name) {
  const at::NoGradGuard guard;
  Tensor weight = branch->named_parameters()[name];
  weight.copy_(at::randn(weight.sizes(), at::detail::createCPUGenerator(7), at::TensorOptions(at::kDouble)));
  return weight;
}

TEST(Mlp, EqualsTheFormulaInLoops) {
  for (const std::string name : {"gelu", "gelu_tanh", "relu", "silu"}) {
    Mlp::Options options;
    options.activation = name;
    const auto branch = std::make_shared<Mlp>(options, context_of());
    branch->eval();
    const Tensor w1 = set_random(branch, "in.weight"), b1 = set_random(branch, "in.bias");
    const Tensor w2 = set_random(branch, "out.weight"), b2 = set_random(branch, "out.bias");
    EXPECT_EQ(w1.sizes(), at::IntArrayRef({9, 6}));
    const Tensor x = at::randn({2, 3, 6}, at::kDouble);
    const Batch batch;
    Pass pass{batch};
    const Tensor y = branch->forward(x, pass, nullptr);
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t t = 0; t < 3; ++t)
        for (int64_t o = 0; o < 6; ++o) {
          double sum = b2[o].item<double>();
          for (int64_t h = 0; h < 9; ++h) {
            double inner = b1[h].item<double>();
            for (int64_t i = 0; i < 6; ++i) inner += w1[h][i].item<double>() * x[b][t][i].item<double>();
            sum += w2[o][h].item<double>() * activation(name, inner);
          }
          EXPECT_NEAR(y[b][t][o].item<double>(), sum, 1e-12) << name;
        }
    EXPECT_EQ(branch->flops(10, 0), 10 * 2 * 2 * 6 * 9);
  }
}

TEST(Glu, EqualsTheFormulaInLoops) {
  Glu::Options options;
  const auto branch = std::make_shared<Glu>(options, context_of());
  branch->eval();
  const Tensor gate = set_random(branch, "gate.weight"), in = set_random(branch, "in.weight"),
               out = set_random(branch, "out.weight");
  EXPECT_EQ(gate.sizes(), at::IntArrayRef({6, 6}));  // 9 * 2/3
  EXPECT_EQ(branch->parameters().size(), 3u);
  const Tensor x = at::randn({1, 2, 6}, at::kDouble);
  const Batch batch;
  Pass pass{batch};
  const Tensor y = branch->forward(x, pass, nullptr);
  for (int64_t t = 0; t < 2; ++t)
    for (int64_t o = 0; o < 6; ++o) {
      double sum = 0;
      for (int64_t h = 0; h < 6; ++h) {
        double g = 0, u = 0;
        for (int64_t i = 0; i < 6; ++i) {
          g += gate[h][i].item<double>() * x[0][t][i].item<double>();
          u += in[h][i].item<double>() * x[0][t][i].item<double>();
        }
        sum += out[o][h].item<double>() * activation("silu", g) * u;
      }
      EXPECT_NEAR(y[0][t][o].item<double>(), sum, 1e-12);
    }
  EXPECT_EQ(branch->flops(10, 0), 10 * 2 * 3 * 6 * 6);
}

TEST(Mlp, DropsHiddenValuesInTrainingOnly) {
  const auto branch = std::make_shared<Mlp>(Mlp::Options(), context_of());
  const Tensor x = at::randn({1, 4, 6}, at::kDouble);
  const Batch batch;
  const auto run = [&](uint64_t seed) {
    Pass pass{batch};
    pass.seed = seed;
    return branch->forward(x, pass, nullptr);
  };
  EXPECT_TRUE(at::equal(run(1), run(1)));
  EXPECT_FALSE(at::equal(run(1), run(2)));
  branch->eval();
  EXPECT_TRUE(at::equal(run(1), run(2)));
  Mlp::Options none;
  none.dropout = 0;
  const auto steady = std::make_shared<Mlp>(none, context_of());
  Pass pass{batch};
  steady->forward(x, pass, nullptr);
  EXPECT_EQ(pass.draws, 0u);
}

}  // namespace
}  // namespace kinfolk
