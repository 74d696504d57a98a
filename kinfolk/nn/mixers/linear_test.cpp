#include "kinfolk/nn/mixers/linear.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/feature.h"
#include "kinfolk/reference/linear.h"
#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {

LinearAttention::Options options(bool normalise, const std::string& norm = "none") {
  LinearAttention::Options o;
  o.feature = normalise ? "elu1" : "identity";
  o.normalise = normalise;
  o.output_norm = norm;
  o.chunk = 16;
  return o;
}

TEST(LinearAttentionMixer, IsTheFormulaOverItsProjections) {
  for (const bool normalise : {false, true}) {
    LinearAttention mixer(options(normalise), reference::small_context());
    const auto p = mixer.named_parameters();
    const Tensor x = at::randn({2, 40, 6}, at::kDouble);
    const auto heads = [&](const char* w) { return at::linear(x, p[w]).view({2, 40, 2, 3}).transpose(1, 2); };
    const auto ran = reference::linear_attention(
        heads("q.weight"), heads("k.weight"), heads("v.weight"), at::zeros({2, 2, 3, 3}, x.options()),
        at::zeros({2, 2, 3}, x.options()), normalise ? "elu1" : "identity", normalise, 1.0, 1e-6);
    const Tensor want = at::linear(ran.out.transpose(1, 2).reshape({2, 40, 6}), p["out.weight"]);
    reference::expect_near(reference::walk(mixer, x, {}, nullptr), want, 1e-10, "output");
  }
}

TEST(LinearAttentionMixer, FormsAgree) {
  for (const bool normalise : {false, true}) {
    LinearAttention mixer(options(normalise, "rms"), reference::small_context());
    reference::expect_forms_agree(mixer, 6);
    LinearAttention narrow(options(normalise), reference::small_context(6, 2, at::kFloat));
    reference::expect_forms_agree(narrow, 6, 2e-5);
  }
}

TEST(LinearAttentionMixer, SplitsAgree) {
  LinearAttention::Options o = options(true);
  o.chunk = 64;
  LinearAttention mixer(o, reference::small_context());
  reference::expect_splits_agree(mixer, 6);
}

TEST(LinearAttentionMixer, StreamingLaws) {
  for (const bool normalise : {false, true}) {
    LinearAttention mixer(options(normalise, normalise ? "none" : "layer"), reference::small_context());
    reference::expect_streaming_laws(mixer, 6);
  }
}

TEST(LinearAttentionMixer, GradientsMatchFiniteDifferences) {
  LinearAttention mixer(options(true, "rms"), reference::small_context(4, 2));
  reference::expect_mixer_gradients(mixer, 4);
}

TEST(LinearAttentionMixer, FloatStaysCloseOverFourThousandTokens) {
  LinearAttention narrow(options(true), reference::small_context(16, 2, at::kFloat));
  LinearAttention wide(options(true), reference::small_context(16, 2));
  reference::expect_float_close(narrow, wide, 16);
}

TEST(LinearAttentionMixer, RefusesWhatCannotWork) {
  LinearAttention::Options o = options(false);
  o.normalise = true;
  EXPECT_THROW(LinearAttention(o, reference::small_context()), UsageError);
  o = options(true);
  o.heads = 4;
  EXPECT_THROW(LinearAttention(o, reference::small_context()), Error);
}

TEST(FeatureMap, Elu1KeepsSmallWeights) {
  const Tensor x = at::tensor({-30.0f, -5.0f, 0.0f, 2.0f}).requires_grad_(true);
  const Tensor y = feature("elu1", x);
  EXPECT_GT(y[0].item<float>(), 0);  // elu(x) + 1 would be 0
  reference::expect_near(y, at::tensor({std::exp(-30.0f), std::exp(-5.0f), 1.0f, 3.0f}), 1e-7, "values");
  const Tensor g = reference::gradients({y}, {at::ones_like(y)}, {x})[0];
  reference::expect_near(g, at::tensor({std::exp(-30.0f), std::exp(-5.0f), 1.0f, 1.0f}), 1e-7, "slopes");
}

}  // namespace
}  // namespace kinfolk
