// The gated mixers over scan_decay: formulas over their projections, golden block, laws.
#include "kinfolk/nn/mixers/decay_mixer.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/gated_retention.h"
#include "kinfolk/nn/mixers/gla.h"
#include "kinfolk/nn/mixers/hgrn.h"
#include "kinfolk/nn/mixers/reflection.h"
#include "kinfolk/nn/mixers/rwkv6.h"
#include "kinfolk/reference/decay.h"
#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {
using reference::small_context;
using reference::Tensors;

std::shared_ptr<Branch> make(const std::string& name, const Context& context) {
  const auto with = [&](auto options, auto made) -> std::shared_ptr<Branch> {
    if constexpr (requires { options.chunk; }) options.chunk = 16;
    return std::make_shared<typename decltype(made)::element_type>(options, context);
  };
  if (name == "gated_retention") return with(GatedRetention::Options{}, std::shared_ptr<GatedRetention>());
  if (name == "gla") {
    Gla::Options o;
    o.keys = 1, o.rank = 3;
    return with(o, std::shared_ptr<Gla>());
  }
  if (name == "reflection") return with(Reflection::Options{}, std::shared_ptr<Reflection>());
  if (name == "hgrn") return with(Hgrn::Options{}, std::shared_ptr<Hgrn>());
  Rwkv6::Options o;
  o.rank = 3;
  return with(o, std::shared_ptr<Rwkv6>());
}

struct DecayMixers : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, DecayMixers, testing::Values("gated_retention", "gla", "reflection", "hgrn", "rwkv6"),
                         [](const auto& info) { return info.param; });

TEST_P(DecayMixers, FormsAgree) {
  reference::expect_forms_agree(*make(GetParam(), small_context()), 6);
  reference::expect_forms_agree(*make(GetParam(), small_context(6, 2, at::kFloat)), 6, 1e-4);
}
TEST_P(DecayMixers, SplitsAgree) { reference::expect_splits_agree(*make(GetParam(), small_context()), 6, 40); }
TEST_P(DecayMixers, StreamingLaws) { reference::expect_streaming_laws(*make(GetParam(), small_context()), 6); }
TEST_P(DecayMixers, GradientsMatchFiniteDifferences) {
  reference::expect_mixer_gradients(*make(GetParam(), small_context(4, 2)), 4);
}
TEST_P(DecayMixers, FloatStaysCloseOverFourThousandTokens) {
  const auto narrow = make(GetParam(), small_context(16, 2, at::kFloat)), wide = make(GetParam(), small_context(16, 2));
  reference::expect_float_close(*narrow, *wide, 16);
}

/// y = W_out (rms(o) * silu(W_swish x)) of a mixer with two heads.
Tensor finish(const torch::OrderedDict<std::string, Tensor>& p, const Tensor& o, const Tensor& x) {
  const Tensor normed = o / (o.square().mean(-1, true) + 1e-5).sqrt() * p["norm.weight"];
  const Tensor g = at::linear(x, p["swish.weight"]);
  return at::linear(normed.transpose(1, 2).flatten(2) * g * at::sigmoid(g), p["out.weight"]);
}

TEST(DecayMixer, GatesAreThoseOfTheFormulas) {
  for (const std::string name : {"gated_retention", "gla", "reflection"}) {
    const auto mixer = make(name, small_context());
    const auto p = mixer->named_parameters();
    const Tensor x = at::randn({2, 40, 6}, at::kDouble), zero = at::zeros({2, 2, 3, 3}, at::kDouble);
    const auto split = [&](const Tensor& t) { return t.unflatten(-1, {2, -1}).transpose(1, 2); };
    const auto heads = [&](const char* w) { return split(at::linear(x, p[w])); };
    const Tensor q = heads("q.weight"), k = heads("k.weight"), v = heads("v.weight");
    const double a = 1 / std::sqrt(3.0);
    Tensor out;
    if (name == "gated_retention") {
      const Tensor decay = at::sigmoid(at::linear(x, p["decay.weight"], p["decay.bias"])).transpose(1, 2);
      out = reference::gated(q, k, v, decay, zero, a).out;
    } else if (name == "gla") {
      const Tensor low = at::linear(x, p["decay_low.weight"]);
      const Tensor decay = split(at::sigmoid(at::linear(low, p["decay.weight"], p["decay.bias"])).pow(1.0 / 16));
      out = reference::gated(q, k, v, decay, zero, a).out;
    } else {
      const Tensor s = split(at::sigmoid(at::linear(x, p["decay.weight"], p["decay.bias"])));
      const Tensor e = split(at::sigmoid(at::linear(x, p["value_decay.weight"], p["value_decay.bias"])));
      out = reference::reflection(q, k, v, e, s, zero, a).out;
    }
    reference::expect_near(reference::walk(*mixer, x, {}, nullptr), finish(p, out, x), 1e-10, name);
  }
}

TEST(DecayMixer, HgrnIsItsFormula) {
  const auto mixer = make("hgrn", small_context());
  const auto p = mixer->named_parameters();
  const Tensor x = at::randn({2, 40, 6}, at::kDouble);
  const Tensor lower = at::sigmoid(p["lower"]);
  const Tensor f = lower + (1 - lower) * at::sigmoid(at::linear(x, p["decay.weight"], p["decay.bias"]));
  const Tensor u = (1 - f) * at::silu(at::linear(x, p["in.weight"]));
  const Tensor h = reference::gated_sum(f, u, at::zeros({2, 6}, at::kDouble)).out;
  const Tensor normed = h / (h.square().mean(-1, true) + 1e-5).sqrt() * p["norm.weight"];
  const Tensor want = at::linear(normed * at::silu(at::linear(x, p["swish.weight"])), p["out.weight"]);
  reference::expect_near(reference::walk(*mixer, x, {}, nullptr), want, 1e-10, "hgrn");
}

TEST(DecayMixer, Rwkv6IsItsFormula) {
  const auto mixer = make("rwkv6", small_context());
  const auto p = mixer->named_parameters();
  {
    const at::NoGradGuard guard;
    p["mix"].uniform_(0, 1);
  }
  const Tensor x = at::randn({2, 40, 6}, at::kDouble), past = at::constant_pad_nd(x, {0, 0, 1, -1});
  const auto mixed = [&](int64_t i) { return x + p["mix"][i] * (past - x); };
  const auto split = [&](const Tensor& t) { return t.unflatten(-1, {2, -1}).transpose(1, 2); };
  const Tensor w0 =
      at::linear(at::tanh(at::linear(mixed(4), p["decay_low.weight"])), p["decay.weight"], p["decay.bias"]);
  const auto ran =
      reference::rwkv6(split(at::linear(mixed(0), p["q.weight"])), split(at::linear(mixed(1), p["k.weight"])),
                       split(at::linear(mixed(2), p["v.weight"])), split((-w0.exp()).exp()), p["bonus"],
                       at::zeros({2, 2, 3, 3}, at::kDouble));
  const Tensor o = at::layer_norm(ran.out, {3}, p["norm.weight"], p["norm.bias"], 1e-5).transpose(1, 2).flatten(2);
  const Tensor want = at::linear(o * at::silu(at::linear(mixed(3), p["swish.weight"])), p["out.weight"]);
  reference::expect_near(reference::walk(*mixer, x, {}, nullptr), want, 1e-10, "rwkv6");
}

TEST(DecayMixer, GoldenGatedRetentionBlock) {
  int streamed = 0;
  for (const auto& one : golden::cases("recurrent/gated_retention_block")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const Form form : {Form::parallel, Form::chunked, Form::step}) {
        for (const bool cut : {false, true}) {
          GatedRetention::Options o;
          o.heads = one.config.at("heads").get<int64_t>();
          o.output_norm = "none", o.swish = false, o.scale = 1, o.chunk = 7;
          GatedRetention mixer(o, small_context(one.at("param.w_q").size(1), o.heads, type));
          const auto p = mixer.named_parameters();
          const std::vector<std::pair<std::string, Tensor>> weights{
              {"w_q", p["q.weight"]},   {"w_k", p["k.weight"]},         {"w_v", p["v.weight"]},
              {"w_o", p["out.weight"]}, {"w_gamma", p["decay.weight"]}, {"b_gamma", p["decay.bias"]}};
          Tensors by, cot;
          std::vector<std::string> names{"x", "initial_state"};
          const Tensor x = reference::leaf(one.at("in.x").to(type));
          State state = mixer.start(x.size(0), x.options());
          Tensor& held = state.tensors[GatedRetention::kState];
          held = reference::leaf(one.at("in.initial_state").to(type));
          by = {x, held};
          for (const auto& [name, parameter] : weights) {
            const at::NoGradGuard guard;
            parameter.copy_(one.at("param." + name));
            by.push_back(parameter), names.push_back(name);
          }
          const auto pieces = cut ? reference::pieces(one, x.size(1)) : std::vector<int64_t>{x.size(1)};
          Tensors out;
          int64_t from = 0;
          for (int64_t n : pieces) {
            out.push_back(reference::walk(mixer, x.narrow(1, from, n), {}, &state, form));
            const std::string name = text("out.final_state_after_", from += n);
            if (one.has(name)) golden::expect_close(held, one.at(name), one, name), streamed++;
          }
          const Tensors outputs{at::cat(out, 1), held};
          golden::expect_close(outputs[0], one.at("out.y"), one, "y");
          golden::expect_close(outputs[1], one.at("out.final_state"), one, "final_state");
          const Tensors got =
              reference::gradients(outputs, {one.at("cot.y").to(type), one.at("cot.final_state").to(type)}, by);
          for (size_t i = 0; i < by.size(); i++) {
            golden::expect_gradient(got[i], one.at("grad." + names[i]), one, names[i]);
          }
        }
      }
    }
  }
  EXPECT_GT(streamed, 0);
}

TEST(DecayMixer, RefusesWidthsThatHeadsDoNotDivide) {
  Gla::Options o;
  o.keys = 0.3;
  EXPECT_THROW(Gla(o, small_context()), Error);
}

}  // namespace
}  // namespace kinfolk
