// The short convolution as a branch: its formula, its laws, and what it refuses.
#include "kinfolk/nn/mixers/convolution.h"

#include <gtest/gtest.h>

#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {
using reference::small_context;

std::shared_ptr<Convolution> make(const Context& context, int64_t taps = 3, const std::string& act = "silu") {
  Convolution::Options options;
  options.taps = taps, options.activation = act;
  return std::make_shared<Convolution>(options, context);
}

TEST(Convolution, SumsTheNearestTokens) {
  const auto branch = make(small_context(6, 2), 3, "none");
  auto p = branch->named_parameters();
  at::NoGradGuard guard;
  p["conv_bias"].copy_(at::arange(6));
  const Tensor x = at::randn({2, 5, 6}, at::kDouble), taps = p["conv"];
  Batch batch;
  batch.tokens = at::zeros({2, 5}, at::kLong);
  Pass pass{batch};
  const Tensor y = branch->forward(x, pass, nullptr);
  for (int64_t t = 0; t < 5; ++t) {
    Tensor expected = at::arange(6).to(at::kDouble).expand({2, 6});
    for (int64_t j = 0; j < 3 && j <= t; ++j) expected = expected + taps.select(1, 2 - j) * x.select(1, t - j);
    EXPECT_LT((y.select(1, t) - expected).abs().max().item<double>(), 1e-12) << t;
  }
}

TEST(Convolution, Laws) {
  for (const int64_t taps : {1, 2, 4}) {
    reference::expect_splits_agree(*make(small_context(6, 2), taps), 6, 20);
    reference::expect_streaming_laws(*make(small_context(6, 2), taps), 6);
  }
  reference::expect_mixer_gradients(*make(small_context(4, 2)), 4);
}

}  // namespace
}  // namespace kinfolk
