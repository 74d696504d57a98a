#include "kinfolk/nn/mixers/lstm.h"

#include <gtest/gtest.h>

#include "kinfolk/reference/recurrent.h"
#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {

TEST(LstmMixer, IsTheFormulaWithItsParameters) {
  for (const int64_t hidden : {0, 5}) {
    Lstm mixer({hidden}, reference::small_context());
    const int64_t N = hidden == 0 ? 6 : hidden;
    const Tensor x = at::randn({2, 20, 6}, at::kDouble), zero = at::zeros({2, N}, at::kDouble);
    const auto ran = reference::lstm(x, zero, zero, mixer.weight_ih, mixer.weight_hh, mixer.bias_ih, mixer.bias_hh);
    const auto p = mixer.named_parameters();
    EXPECT_EQ(p.size(), hidden == 0 ? 4u : 5u);
    const Tensor want = hidden == 0 ? ran.y : at::linear(ran.y, p["out.weight"]);
    reference::expect_near(reference::walk(mixer, x, {}, nullptr), want, 1e-12, text("hidden ", hidden));
  }
}

TEST(LstmMixer, AgreesWithTorch) {
  Lstm mixer({0}, reference::small_context(6, 1, at::kFloat));
  const Tensor x = at::randn({2, 30, 6}), zero = at::zeros({1, 2, 6});
  const Tensor want =
      std::get<0>(at::lstm(x, {zero, zero}, {mixer.weight_ih, mixer.weight_hh, mixer.bias_ih, mixer.bias_hh}, true, 1,
                           0.0, false, false, true));
  reference::expect_near(reference::walk(mixer, x, {}, nullptr), want, 1e-5, "torch");
}

TEST(LstmMixer, FormsAgree) {
  Lstm mixer({0}, reference::small_context());
  reference::expect_forms_agree(mixer, 6);
}

TEST(LstmMixer, SplitsAgree) {
  Lstm mixer({4}, reference::small_context());
  reference::expect_splits_agree(mixer, 6);
}

TEST(LstmMixer, StreamingLaws) {
  for (const int64_t hidden : {0, 5}) {
    Lstm mixer({hidden}, reference::small_context());
    reference::expect_streaming_laws(mixer, 6);
  }
}

TEST(LstmMixer, GradientsMatchFiniteDifferences) {
  Lstm mixer({3}, reference::small_context(4, 1));
  reference::expect_mixer_gradients(mixer, 4);
}

TEST(LstmMixer, FloatStaysCloseOverFourThousandTokens) {
  Lstm narrow({0}, reference::small_context(16, 1, at::kFloat)), wide({0}, reference::small_context(16, 1));
  reference::expect_float_close(narrow, wide, 16);
}

TEST(LstmMixer, ForgetGateStartsOpen) {
  Lstm mixer({3}, reference::small_context());
  EXPECT_EQ(mixer.bias_ih.narrow(0, 3, 3).min().item<double>(), 1);
  EXPECT_EQ(mixer.bias_ih.narrow(0, 0, 3).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace kinfolk
