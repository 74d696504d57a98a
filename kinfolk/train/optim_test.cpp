#include "kinfolk/train/optim.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

NamedTensors small(bool odd = false) {
  at::manual_seed(3);
  NamedTensors out;
  out.emplace_back("layer.0.weight", at::randn({7, odd ? 5 : 8}).requires_grad_());
  out.emplace_back("layer.0.bias", at::randn({7}).requires_grad_());
  out.emplace_back("input.tokens.weight", at::randn({4, 3}).requires_grad_());
  return out;
}

void set_gradients(const NamedTensors& weights, double factor) {
  at::manual_seed(static_cast<uint64_t>(factor * 100));
  for (const auto& [name, weight] : weights) weight.mutable_grad() = at::randn_like(weight).detach() * factor;
}

/// The article's algorithm, a number at a time.
struct Oracle {
  std::vector<std::vector<double>> w, m, v;
  explicit Oracle(const NamedTensors& weights) {
    for (const auto& [name, weight] : weights) {
      std::vector<double> values;
      const auto flat = weight.detach().reshape({-1});
      for (int64_t i = 0; i < flat.numel(); ++i) values.push_back(flat[i].item<double>());
      w.push_back(values);
      m.emplace_back(values.size(), 0.0);
      v.emplace_back(values.size(), 0.0);
    }
  }
  double step(const NamedTensors& weights, int t, double rate, const AdamW::Options& o, double scale) {
    double square = 0;
    for (const auto& [name, weight] : weights) square += weight.grad().to(at::kDouble).pow(2).sum().item<double>();
    const double norm = std::sqrt(square) / scale, factor = o.clip > 0 && norm > o.clip ? o.clip / norm : 1;
    for (size_t k = 0; k < w.size(); ++k) {
      const auto g = weights[k].second.grad().reshape({-1});
      for (size_t i = 0; i < w[k].size(); ++i) {
        const double gi = g[static_cast<int64_t>(i)].item<double>() / scale * factor;
        m[k][i] = o.beta1 * m[k][i] + (1 - o.beta1) * gi;
        v[k][i] = o.beta2 * v[k][i] + (1 - o.beta2) * gi * gi;
        if (k == 0) w[k][i] -= rate * o.decay * w[k][i];
        w[k][i] -=
            rate * m[k][i] / (1 - std::pow(o.beta1, t)) / (std::sqrt(v[k][i] / (1 - std::pow(o.beta2, t))) + o.epsilon);
      }
    }
    return norm;
  }
  void expect(const NamedTensors& weights, const char* which) const {
    for (size_t k = 0; k < w.size(); ++k) {
      const auto flat = weights[k].second.detach().reshape({-1});
      for (size_t i = 0; i < w[k].size(); ++i) {
        ASSERT_NEAR(flat[static_cast<int64_t>(i)].item<double>(), w[k][i], 2e-6) << which << k << " " << i;
      }
    }
  }
};

TEST(AdamW, FusedAndPlainEqualTheArticle) {
  for (const bool fused : {true, false}) {
    for (const double clip : {0.0, 1.5, 1000.0}) {
      const auto weights = small(true);
      AdamW::Options options;
      options.fused = fused;
      options.clip = clip;
      options.decay = 0.3;
      AdamW optimiser(weights, options);
      Oracle oracle(weights);
      for (int t = 1; t <= 5; ++t) {
        set_gradients(weights, t);
        const double rate = 0.01 * t, scale = t % 2 ? 1.0 : 3.0;
        const double norm = oracle.step(weights, t, rate, options, scale);
        EXPECT_NEAR(optimiser.step(rate, scale).norm, norm, 1e-5 * norm);
        oracle.expect(weights, fused ? "fused" : "plain");
      }
    }
  }
}

TEST(AdamW, GroupsAreListed) {
  const AdamW optimiser(small(), {});
  const std::string said = optimiser.describe();
  EXPECT_LT(said.find("layer.0.weight"), said.find("not decayed"));
  EXPECT_GT(said.find("layer.0.bias"), said.find("not decayed"));
  EXPECT_GT(said.find("input.tokens.weight"), said.find("not decayed"));
}

TEST(AdamW, DecaysMatricesOfProducts) {
  const at::Tensor matrix = at::zeros({2, 2}), line = at::zeros({2});
  for (const char* yes : {"head.weight", "layers.0.branches.1.input.weight", "cell.weight_hidden"}) {
    EXPECT_TRUE(decays(yes, matrix)) << yes;
    EXPECT_FALSE(decays(yes, line)) << yes;
  }
  for (const char* no : {"input.weight", "score.table", "position.weight", "last_norm.weight", "qk.u", "bias"}) {
    EXPECT_FALSE(decays(no, matrix)) << no;
  }
}

TEST(AdamW, GradientThatIsNotFiniteIsSkippedAndCounted) {
  const auto weights = small();
  AdamW optimiser(weights, {});
  set_gradients(weights, 1);
  optimiser.step(0.1);
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : weights) before.push_back(tensor.detach().clone());
  for (const auto& [name, tensor] : optimiser.moments()) before.push_back(tensor.clone());
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    set_gradients(weights, 2);
    weights[1].second.mutable_grad()[3] = bad;
    EXPECT_TRUE(optimiser.step(0.1).skipped);
  }
  EXPECT_EQ(optimiser.skipped_in_a_row(), 2);
  size_t i = 0;
  for (const auto& [name, tensor] : weights) EXPECT_TRUE(tensor.equal(before[i++])) << name;
  for (const auto& [name, tensor] : optimiser.moments()) EXPECT_TRUE(tensor.equal(before[i++])) << name;
  set_gradients(weights, 3);
  EXPECT_FALSE(optimiser.step(0.1).skipped);
  EXPECT_EQ(optimiser.skipped_in_a_row(), 0);
}

TEST(AdamW, ContinuesBitEqualFromItsMoments) {
  const auto a = small(), b = small();
  AdamW first(a, {}), second(b, {});
  for (int t = 1; t <= 2; ++t) set_gradients(a, t), first.step(0.01);
  for (size_t i = 0; i < a.size(); ++i) b[i].second.detach().copy_(a[i].second.detach());
  second.load_moments(first.moments());
  set_gradients(a, 3), first.step(0.01);
  set_gradients(b, 3), second.step(0.01);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
  auto partial = first.moments();
  partial.erase("second.layer.0.bias");
  EXPECT_THROW(second.load_moments(partial), Error);
}

TEST(AdamW, WeightsWithoutGradientStay) {
  const auto weights = small();
  AdamW optimiser(weights, {});
  const at::Tensor before = weights[0].second.detach().clone();
  weights[1].second.mutable_grad() = at::ones({7});
  optimiser.step(0.1);
  EXPECT_TRUE(weights[0].second.equal(before));
  EXPECT_THROW(optimiser.step(0.1, 0.0), Error);
  optimiser.zero_grad();
  EXPECT_EQ(optimiser.step(0.1).norm, 0);
}

}  // namespace
}  // namespace kinfolk
