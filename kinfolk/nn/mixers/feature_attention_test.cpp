// Performer and random feature attention: golden rows, the articles' sums in loops, laws, features, refusals.
#include "kinfolk/nn/mixers/feature_attention.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/feature/directions.h"
#include "kinfolk/nn/feature/positive.h"
#include "kinfolk/nn/feature/rectified.h"
#include "kinfolk/nn/feature/sin_cos.h"
#include "kinfolk/nn/mixers/feature_sums.h"
#include "kinfolk/nn/mixers/performer.h"
#include "kinfolk/nn/mixers/rfa.h"
#include "kinfolk/reference/random_features.h"
#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {
using reference::small_context;

Tensor read(const Tensor& fq, const Tensor& fk, const Tensor& v, bool causal, bool positive, int64_t chunk,
            const Tensor& gate = {}) {
  FeatureSums sums{fq, fk, v, gate};
  sums.causal = causal, sums.positive = positive, sums.eps = 1e-30;
  return read_features(sums, chunk).out;
}

std::map<std::string, Tensor> inputs(const golden::Case& one, at::ScalarType type) {
  std::map<std::string, Tensor> in;
  for (const char* name : {"q", "k", "v", "gate"})
    if (one.has(text("in.", name))) in[name] = one.at(text("in.", name)).to(type).set_requires_grad(true);
  return in;
}

void expect_golden(const golden::Case& one, const Tensor& o, const std::map<std::string, Tensor>& in) {
  golden::expect_close(o, one.at("out.o"), one, "o");
  (o * one.at("cot.o").to(o.scalar_type())).sum().backward();
  for (const auto& [name, leaf] : in) golden::expect_gradient(leaf.grad(), one.at("grad.in." + name), one, name);
}

TEST(Performer, Golden) {
  for (const auto& one : golden::cases("attention/performer")) {
    const bool causal = one.config.at("causal").get<bool>(), relu = one.config.at("kind") == "relu";
    const double eps = one.config.at("eps");
    for (const auto type : {at::kDouble, at::kFloat})
      for (const int64_t chunk : {0, 4, 64}) {
        SCOPED_TRACE(text(one.name, " chunk ", chunk, " ", type));
        const auto in = inputs(one, type);
        const Tensor directions = one.at("in.omega").to(type), q = in.at("q"), k = in.at("k"), v = in.at("v");
        const PositiveFeatures map{directions, eps};
        const Tensor fq = relu ? rectified_features(q, directions, eps) : map.queries(q, true);
        const Tensor fk = relu ? rectified_features(k, directions, eps) : map.keys_of_all(k, {});
        expect_golden(one, read(fq, fk, v, causal, true, chunk), in);
      }
  }
}

TEST(Rfa, Golden) {
  for (const auto& one : golden::cases("attention/rfa")) {
    for (const auto type : {at::kDouble, at::kFloat})
      for (const int64_t chunk : {0, 4, 64}) {
        SCOPED_TRACE(text(one.name, " chunk ", chunk, " ", type));
        const auto in = inputs(one, type);
        const Tensor directions = one.at("in.omega").to(type);
        const auto unit = [](const Tensor& t) { return t / t.square().sum(-1, true).sqrt(); };
        Tensor fk = sin_cos_features(unit(in.at("k")), directions), gate;
        if (in.count("gate")) {
          gate = at::log_sigmoid(in.at("gate"));
          fk = fk * at::sigmoid(-in.at("gate")).unsqueeze(-1);
        }
        const Tensor fq = sin_cos_features(unit(in.at("q")), directions);
        expect_golden(one, read(fq, fk, in.at("v"), one.config.value("causal", false), false, chunk, gate), in);
      }
  }
}

/// y = W_out of the heads that `attend` makes of x's projections.
template <class Attend>
Tensor over_projections(Branch& mixer, const Tensor& x, int64_t heads, Attend&& attend) {
  const auto p = mixer.named_parameters();
  const auto part = [&](const char* w) { return at::linear(x, p[w]).unflatten(-1, {heads, -1}).transpose(1, 2); };
  const Tensor o = attend(part("q.weight"), part("k.weight"), part("v.weight"));
  return at::linear(o.transpose(1, 2).flatten(2), p["out.weight"]);
}

TEST(Performer, IsTheArticlesSumOverItsProjections) {
  const Tensor x = at::randn({2, 13, 6}, at::kDouble);
  for (const bool causal : {true, false}) {
    Performer::Options options;
    options.features = 8, options.causal = causal, options.stabiliser = "keys";
    Performer mixer(options, small_context());
    const Tensor want = over_projections(mixer, x, 2, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return reference::performer(q, k, v, mixer.directions(), causal, options.eps);
    });
    reference::expect_near(reference::walk(mixer, x, {}, nullptr), want, 1e-10, "output");
    // Padding at the end moves nothing, neither the stabiliser nor the sums.
    const Tensor padded = at::cat({x, at::full({2, 3, 6}, 50.0, at::kDouble)}, 1);
    const reference::Lanes lanes{at::arange(16).lt(13).expand({2, 16}).contiguous(), {}};
    const Tensor with = reference::walk(mixer, padded, {}, nullptr, Form::automatic, lanes);
    reference::expect_near(with.narrow(1, 0, 13), want, 1e-10, "padded");
    EXPECT_EQ(with.narrow(1, 13, 3).abs().max().item<double>(), 0);
  }
}

TEST(Rfa, IsTheArticlesSumOverItsProjections) {
  const Tensor x = at::randn({2, 13, 6}, at::kDouble);
  for (const int form : {0, 1, 2}) {
    Rfa::Options options;
    options.features = 8, options.gated = form == 2, options.causal = form > 0, options.eps = 1e-12;
    Rfa mixer(options, small_context());
    const Tensor want = over_projections(mixer, x, 2, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      Tensor gate;
      if (form == 2) {
        const auto p = mixer.named_parameters();
        gate = at::linear(x, p["gate.weight"], p["gate.bias"]).transpose(1, 2);
      }
      return reference::rfa(q, k, v, mixer.directions(), form > 0, gate);
    });
    const Tensor got = reference::walk(mixer, x, {}, nullptr);
    EXPECT_LT(((got - want).abs() / (1 + want.abs())).max().item<double>(), 1e-9);
  }
}

struct FeatureMixers : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, FeatureMixers, testing::Values("positive", "sin_cos", "relu", "rfa", "rfa_gated"),
                         [](const auto& info) { return info.param; });

std::shared_ptr<Branch> make(const std::string& name, const Context& context) {
  if (name.starts_with("rfa")) {
    Rfa::Options options;
    options.features = 8, options.gated = name == "rfa_gated", options.chunk = 16;
    return std::make_shared<Rfa>(options, context);
  }
  Performer::Options options;
  options.features = 16, options.feature = name, options.chunk = 16;
  if (name == "sin_cos") options.eps = 1e-2;
  return std::make_shared<Performer>(options, context);
}

TEST_P(FeatureMixers, FormsAgree) { reference::expect_forms_agree(*make(GetParam(), small_context()), 6, 1e-8); }
TEST_P(FeatureMixers, SplitsAgree) { reference::expect_splits_agree(*make(GetParam(), small_context()), 6, 40); }
TEST_P(FeatureMixers, StreamingLaws) { reference::expect_streaming_laws(*make(GetParam(), small_context()), 6); }
TEST_P(FeatureMixers, GradientsMatchFiniteDifferences) {
  if (GetParam().starts_with("rfa")) {  // a narrow spread of directions keeps the divisor from zero
    Rfa::Options options;
    options.features = 4, options.deviation = 0.3, options.gated = GetParam() == "rfa_gated";
    Rfa mixer(options, small_context(4, 2));
    return reference::expect_mixer_gradients(mixer, 4);
  }
  reference::expect_mixer_gradients(*make(GetParam(), small_context(4, 2)), 4);
}

TEST(RandomDirections, AreOrthogonalAndOfTheRightLengths) {
  const auto generator = at::detail::createCPUGenerator(3);
  const Tensor w = random_directions(2, 20, 8, true, generator);
  ASSERT_EQ(w.sizes(), (std::vector<int64_t>{2, 20, 8}));
  const Tensor block = w.narrow(1, 8, 8), products = at::matmul(block, block.transpose(-2, -1));
  const Tensor off = products - at::diag_embed(products.diagonal(0, -2, -1));
  EXPECT_LT(off.abs().max().item<double>(), 1e-10);
  const Tensor many = random_directions(400, 8, 8, true, generator);
  EXPECT_NEAR(many.square().sum(-1).mean().item<double>(), 8, 0.3) << "|w|^2 is chi squared of 8";
  EXPECT_NEAR(many.mean().item<double>(), 0, 0.03);
  EXPECT_NEAR(many.square().mean().item<double>(), 1, 0.04);
}

/// The mean over many draws is the softmax kernel, and orthogonal directions are nearer to it than independent ones.
TEST(PositiveFeatures, AreTheSoftmaxKernelInTheMean) {
  const auto generator = at::detail::createCPUGenerator(5);
  const auto draw = [&] { return at::randn({8}, generator, at::TensorOptions().dtype(at::kDouble)) * 0.7; };
  const Tensor q = draw(), k = draw();
  const double want = std::exp(q.dot(k).item<double>() / std::sqrt(8.0));
  double error[2];
  for (const bool orthogonal : {false, true}) {
    const Tensor w = random_directions(4000, 8, 8, orthogonal, generator);
    Tensor each = at::zeros({4000}, at::kDouble);
    for (int64_t i = 0; i < 4000; i++) {
      each[i] = reference::positive_feature(q, w[i], 0, 0).dot(reference::positive_feature(k, w[i], 0, 0));
    }
    EXPECT_NEAR(each.mean().item<double>(), want, 0.05 * want);
    error[orthogonal] = (each - want).square().mean().item<double>();
  }
  EXPECT_LT(error[1], error[0]);
}

TEST(Performer, StaysFiniteForLargeKeysAndEmptyRows) {
  Performer::Options options;
  options.features = 32;
  Performer mixer(options, small_context(128, 2, at::kFloat));
  const Tensor x = at::randn({1, 40, 128}) * 30;
  EXPECT_TRUE(reference::walk(mixer, x, {}, nullptr).isfinite().all().item<bool>());
  const reference::Lanes none{at::zeros({1, 40}, at::kBool), {}};
  EXPECT_EQ(reference::walk(mixer, x, {}, nullptr, Form::automatic, none).abs().max().item<float>(), 0);
}

TEST(Performer, DrawsAnewOnlyWhenAsked) {
  for (const int64_t redraw : {0, 2}) {
    Performer::Options options;
    options.features = 16, options.redraw = redraw;
    Performer mixer(options, small_context());
    const Tensor before = mixer.directions().clone(), x = at::randn({1, 4, 6}, at::kDouble);
    const Batch batch;
    const auto call = [&] {
      std::vector<std::function<void()>> updates;
      Pass pass{.batch = batch};
      pass.position = at::arange(4).view({1, 4});
      pass.updates = &updates;
      mixer.forward(x, pass, nullptr);
      for (const auto& update : updates) update();
    };
    mixer.eval();
    for (int i = 0; i < 4; i++) call();
    EXPECT_TRUE(mixer.directions().equal(before)) << "evaluation repeats";
    mixer.train();
    call();
    EXPECT_TRUE(mixer.directions().equal(before));
    call();
    EXPECT_EQ(mixer.directions().equal(before), redraw == 0);
  }
}

TEST(RandomFeatures, SayWhatTheyCannotDo) {
  Performer::Options options;
  options.stabiliser = "keys";
  EXPECT_FALSE(Performer(options, small_context()).traits().streams);
  EXPECT_FALSE(Performer(options, small_context()).traits().why_not.empty());
  options.feature = "relu";
  EXPECT_THROW(Performer(options, small_context()), UsageError);
  Rfa::Options gated;
  gated.causal = false;
  EXPECT_THROW(Rfa(gated, small_context()), UsageError);
  gated.gated = false;
  EXPECT_FALSE(Rfa(gated, small_context()).traits().causal);
}

}  // namespace
}  // namespace kinfolk
