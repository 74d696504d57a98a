#include "kinfolk/nn/mixers/delta.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/reference/linear.h"
#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {

Delta::Options options(int64_t conv = 4, bool negative = false, int64_t chunk = 16) {
  Delta::Options o;
  o.conv = conv;
  o.negative = negative;
  o.chunk = chunk;
  return o;
}

TEST(DeltaMixer, IsTheFormulaOverItsProjections) {
  for (const int64_t conv : {0, 1, 4}) {
    for (const bool negative : {false, true}) {
      Delta mixer(options(conv, negative), reference::small_context());
      const auto p = mixer.named_parameters();
      const Tensor x = at::randn({2, 40, 6}, at::kDouble);
      const auto stream = [&](const std::string& name) {
        Tensor y = at::linear(x, p[name + ".weight"]);
        y = conv == 0
                ? y * at::sigmoid(y)
                : reference::short_conv(y, p[name + "_conv"], {}, at::zeros({2, 6, conv - 1}, x.options()), true).out;
        return y.view({2, 40, 2, 3}).transpose(1, 2);
      };
      const auto unit = [](const Tensor& t) { return t / (t.square().sum(-1, true) + 1e-6).sqrt(); };
      const Tensor beta = (negative ? 2 : 1) * at::sigmoid(at::linear(x, p["beta.weight"])).transpose(1, 2);
      const auto ran = reference::delta_rule(unit(stream("q")), unit(stream("k")), stream("v"), beta,
                                             at::zeros({2, 2, 3, 3}, x.options()), 1 / std::sqrt(3.0));
      const Tensor normed = ran.out / (ran.out.square().mean(-1, true) + 1e-5).sqrt() * p["norm.weight"];
      const Tensor want = at::linear(normed.transpose(1, 2).reshape({2, 40, 6}), p["out.weight"]);
      reference::expect_near(reference::walk(mixer, x, {}, nullptr), want, 1e-10, text("conv ", conv));
    }
  }
}

TEST(DeltaMixer, FormsAgree) {
  for (const int64_t conv : {0, 4}) {
    Delta mixer(options(conv, true), reference::small_context());
    reference::expect_forms_agree(mixer, 6);
    Delta narrow(options(conv), reference::small_context(6, 2, at::kFloat));
    reference::expect_forms_agree(narrow, 6, 1e-4);
  }
}

TEST(DeltaMixer, SplitsAgree) {
  Delta mixer(options(4, false, 64), reference::small_context());
  reference::expect_splits_agree(mixer, 6);
}

TEST(DeltaMixer, StreamingLaws) {
  for (const int64_t conv : {0, 1, 4}) {
    Delta mixer(options(conv), reference::small_context());
    reference::expect_streaming_laws(mixer, 6);
  }
}

TEST(DeltaMixer, GradientsMatchFiniteDifferences) {
  Delta mixer(options(3), reference::small_context(4, 2));
  reference::expect_mixer_gradients(mixer, 4);
}

TEST(DeltaMixer, FloatStaysCloseOverFourThousandTokens) {
  Delta narrow(options(), reference::small_context(16, 2, at::kFloat)),
      wide(options(), reference::small_context(16, 2));
  reference::expect_float_close(narrow, wide, 16);
}

TEST(DeltaMixer, StrongInputsStayFinite) {
  Delta mixer(options(4, true), reference::small_context(6, 2, at::kFloat));
  for (const double size : {0.0, 1e-20, 1e4}) {
    const Tensor x = at::randn({1, 300, 6}, at::kFloat) * size;
    for (const Tensor& t : reference::walk_with_gradients(mixer, x, {}, Form::automatic, {})) {
      EXPECT_TRUE(t.isfinite().all().item<bool>()) << size;
    }
  }
}

TEST(DeltaMixer, RefusesHeadsThatDoNotDivide) {
  Delta::Options o = options();
  o.heads = 4;
  EXPECT_THROW(Delta(o, reference::small_context()), Error);
}

}  // namespace
}  // namespace kinfolk
