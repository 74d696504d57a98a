// Mamba, Mamba-2, gated DeltaNet and RG-LRU: golden blocks and formulas over their parameters, and the laws.
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/gated_delta.h"
#include "kinfolk/nn/mixers/mamba.h"
#include "kinfolk/nn/mixers/mamba2.h"
#include "kinfolk/nn/mixers/rg_lru.h"
#include "kinfolk/reference/linear.h"
#include "kinfolk/reference/selective.h"
#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {
using reference::small_context;
using reference::Tensors;

std::shared_ptr<Branch> make(const std::string& name, const Context& context) {
  if (name == "mamba" || name == "mamba_zoh") {
    Mamba::Options o;
    o.states = 3, o.rank = 2, o.chunk = 16;
    if (name == "mamba_zoh") o.discretisation = "zoh", o.conv = 1;
    return std::make_shared<Mamba>(o, context);
  }
  if (name == "mamba2") {
    Mamba2::Options o;
    o.states = 3, o.groups = 2, o.norm_groups = 2, o.chunk = 16;
    return std::make_shared<Mamba2>(o, context);
  }
  if (name == "gated_delta") {
    GatedDelta::Options o;
    o.chunk = 16, o.negative = true;
    return std::make_shared<GatedDelta>(o, context);
  }
  return std::make_shared<RgLru>(RgLru::Options{}, context);
}

struct SelectiveMixers : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, SelectiveMixers, testing::Values("mamba", "mamba_zoh", "mamba2", "gated_delta", "rg_lru"),
                         [](const auto& info) { return info.param; });

TEST_P(SelectiveMixers, FormsAgree) {
  reference::expect_forms_agree(*make(GetParam(), small_context()), 6);
  reference::expect_forms_agree(*make(GetParam(), small_context(6, 2, at::kFloat)), 6, 1e-4);
}
TEST_P(SelectiveMixers, SplitsAgree) { reference::expect_splits_agree(*make(GetParam(), small_context()), 6, 70); }
TEST_P(SelectiveMixers, StreamingLaws) { reference::expect_streaming_laws(*make(GetParam(), small_context()), 6); }
TEST_P(SelectiveMixers, GradientsMatchFiniteDifferences) {
  // Keys of two entries may lie near 0, where a difference of finite step says little of the slope of their norm.
  const int64_t width = GetParam() == "gated_delta" ? 6 : 4;
  reference::expect_mixer_gradients(*make(GetParam(), small_context(width, 2)), width);
}
TEST_P(SelectiveMixers, FloatStaysCloseOverFourThousandTokens) {
  reference::expect_float_close(*make(GetParam(), small_context(16, 2, at::kFloat)),
                                *make(GetParam(), small_context(16, 2)), 16);
}
TEST_P(SelectiveMixers, StrongInputsStayFinite) {
  const auto mixer = make(GetParam(), small_context(6, 2, at::kFloat));
  for (const double size : {0.0, 1e-20, 1e3}) {
    const Tensor x = at::randn({1, 300, 6}, at::kFloat) * size;
    for (const Tensor& t : reference::walk_with_gradients(*mixer, x, {}, Form::automatic, {})) {
      EXPECT_TRUE(t.isfinite().all().item<bool>()) << size;
    }
  }
}

/// A golden block: `names` says which of our parameters hold each of theirs, rows one after another; `states` which of
/// ours is each of theirs.
void expect_block(const golden::Case& one, Branch& mixer, const std::map<std::string, std::string>& names,
                  const std::map<std::string, std::string>& states, at::ScalarType type, bool cut) {
  auto parameters = mixer.named_parameters();
  {
    const at::NoGradGuard guard;
    EXPECT_EQ(names.size(), parameters.size());
    for (const auto& [theirs, ours] : names) {
      ASSERT_EQ(parameters[ours].sizes(), one.at("param." + theirs).sizes()) << theirs;
      parameters[ours].copy_(one.at("param." + theirs));
    }
  }
  const Tensor x = reference::leaf(one.at("in.x").to(type));
  State state = mixer.start(x.size(0), x.options());
  std::map<std::string, Tensor> starts;
  for (const auto& [theirs, ours] : states) {
    if (!one.has("in." + theirs)) continue;
    state.tensors[ours] = starts["in." + theirs] = reference::leaf(one.at("in." + theirs).to(type));
  }
  const auto pieces = cut ? reference::pieces(one, x.size(1)) : std::vector<int64_t>{x.size(1)};
  Tensors outputs{reference::walk(mixer, x, pieces, &state)}, cot{one.at("cot.y").to(type)};
  golden::expect_close(outputs[0], one.at("out.y"), one, "y");
  for (const auto& [theirs, ours] : states) {
    outputs.push_back(state.tensors.at(ours));
    golden::expect_close(outputs.back(), one.at("out.final_" + theirs), one, theirs);
    cot.push_back(one.at("cot.final_" + theirs).to(type));
  }
  Tensors by{x};
  std::vector<std::string> keys{"grad.x"};
  for (const auto& [theirs, ours] : names) by.push_back(parameters[ours]), keys.push_back("grad." + theirs);
  for (const auto& [key, tensor] : starts) by.push_back(tensor), keys.push_back("grad." + key.substr(3));
  const Tensors got = reference::gradients(outputs, cot, by);
  for (size_t i = 0; i < got.size(); i++) golden::expect_gradient(got[i], one.at(keys[i]), one, keys[i]);
}

TEST(MambaMixer, GoldenBlock) {
  for (const auto& one : golden::cases("recurrent/mamba_block")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        Mamba::Options o;
        o.expand = 2;
        o.states = one.at("param.A_log").size(1), o.rank = one.at("param.dt_proj").size(1);
        o.conv = one.at("param.conv_weight").size(1);
        Mamba mixer(o, small_context(one.at("in.x").size(2), 1, type));
        expect_block(one, mixer,
                     {{"in_proj", "in.weight"},
                      {"conv_weight", "conv"},
                      {"conv_bias", "conv_bias"},
                      {"x_proj", "select.weight"},
                      {"dt_proj", "step.weight"},
                      {"dt_bias", "step.bias"},
                      {"A_log", "a_log"},
                      {"D", "skip"},
                      {"out_proj", "out.weight"}},
                     {{"conv_state", Mamba::kPast}, {"ssm_state", Mamba::kState}}, type, cut);
      }
    }
  }
}

TEST(Mamba2Mixer, GoldenBlock) {
  for (const auto& one : golden::cases("recurrent/mamba2_block")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        Mamba2::Options o;
        o.heads = one.config.at("heads"), o.groups = one.config.at("groups");
        o.norm_groups = one.config.at("norm_groups"), o.eps = one.config.at("norm_eps");
        const int64_t D = one.at("in.x").size(2), E = one.at("param.norm_weight").size(0);
        o.expand = E / D;
        o.states = (one.at("param.conv_weight").size(0) - E) / (2 * o.groups);
        o.conv = one.at("param.conv_weight").size(1);
        Mamba2 mixer(o, small_context(D, 1, type));
        expect_block(one, mixer,
                     {{"in_proj", "in.weight"},
                      {"conv_weight", "conv"},
                      {"conv_bias", "conv_bias"},
                      {"dt_bias", "step_bias"},
                      {"A_log", "rate_log"},
                      {"D", "skip"},
                      {"norm_weight", "norm_weight"},
                      {"out_proj", "out.weight"}},
                     {{"conv_state", Mamba2::kPast}, {"ssm_state", Mamba2::kState}}, type, cut);
      }
    }
  }
}

TEST(Mamba2Mixer, RefusesWhatDoesNotDivide) {
  Mamba2::Options o;
  o.expand = 2;
  o.heads = 5;
  EXPECT_THROW(Mamba2(o, small_context()), Error);
  o.heads = 4, o.groups = 3;
  EXPECT_THROW(Mamba2(o, small_context()), Error);
}

TEST(RgLruMixer, GoldenRecurrence) {
  for (const auto& one : golden::cases("recurrent/rg_lru")) {
    const Tensor shape = one.at("param.w_a");
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        RgLru::Options o;
        o.blocks = shape.size(0), o.c = one.config.at("c").get<double>();
        RgLru mixer(o, small_context(one.at("in.x").size(2), 1, type));
        auto p = mixer.named_parameters();
        const std::map<std::string, std::string> names{{"w_a", "recurrent_gate"},
                                                       {"b_a", "recurrent_bias"},
                                                       {"w_x", "input_gate"},
                                                       {"b_x", "input_bias"},
                                                       {"lambda", "lambda"}};
        const std::vector<std::string> in{"in.x",      "param.w_a",    "param.b_a",       "param.w_x",
                                          "param.b_x", "param.lambda", "in.initial_state"};
        // The parameters stand in the mixer; x and the state are given.
        const Tensor x = reference::leaf(one.at("in.x").to(type)),
                     start = reference::leaf(one.at("in.initial_state").to(type));
        {
          const at::NoGradGuard guard;
          for (const auto& [theirs, ours] : names) p[ours].copy_(one.at("param." + theirs));
        }
        State state = mixer.start(x.size(0), x.options());
        state.tensors[RgLru::kState] = start;
        const Batch batch;
        Tensors out;
        int64_t from = 0;
        for (int64_t n : cut ? reference::pieces(one, x.size(1)) : std::vector<int64_t>{x.size(1)}) {
          Pass pass{.batch = batch};
          out.push_back(mixer.recur(x.narrow(1, from, n), pass, &state));
          from += n;
        }
        const Tensors outputs{at::cat(out, 1), state.tensors.at(RgLru::kState)};
        golden::expect_close(outputs[0], one.at("out.o"), one, "o");
        golden::expect_close(outputs[1], one.at("out.final_state"), one, "state");
        Tensors by{x, start};
        std::vector<std::string> keys{"grad.x", "grad.initial_state"};
        for (const auto& [theirs, ours] : names) by.push_back(p[ours]), keys.push_back("grad." + theirs);
        const Tensors got =
            reference::gradients(outputs, {one.at("cot.o").to(type), one.at("cot.final_state").to(type)}, by);
        for (size_t i = 0; i < got.size(); i++) golden::expect_gradient(got[i], one.at(keys[i]), one, keys[i]);
      }
    }
  }
}

TEST(GatedDeltaMixer, IsTheFormulaOverItsProjections) {
  GatedDelta::Options o;
  o.chunk = 16;
  GatedDelta mixer(o, small_context());
  auto p = mixer.named_parameters();
  const Tensor x = at::randn({2, 40, 6}, at::kDouble);
  const auto stream = [&](const std::string& name) {
    return reference::short_conv(at::linear(x, p[name + ".weight"]), p[name + "_conv"], {},
                                 at::zeros({2, 6, 3}, x.options()), true)
        .out.view({2, 40, 2, 3})
        .transpose(1, 2);
  };
  const auto unit = [](const Tensor& t) { return t / (t.square().sum(-1, true) + 1e-6).sqrt(); };
  const Tensor beta = at::sigmoid(at::linear(x, p["beta.weight"])).transpose(1, 2);
  const Tensor raw = at::linear(x, p["decay.weight"]) + p["step_bias"];
  const Tensor log_decay = -(p["rate_log"].exp() * at::log1p(at::exp(raw))).transpose(1, 2);
  const auto ran = reference::gated_delta_rule(unit(stream("q")), unit(stream("k")), stream("v"), beta, log_decay,
                                               at::zeros({2, 2, 3, 3}, x.options()), 1 / std::sqrt(3.0));
  const Tensor normed = ran.out / (ran.out.square().mean(-1, true) + 1e-5).sqrt() * p["norm.weight"];
  const Tensor swish = at::linear(x, p["swish.weight"]);
  const Tensor want =
      at::linear(normed.transpose(1, 2).reshape({2, 40, 6}) * swish * at::sigmoid(swish), p["out.weight"]);
  reference::expect_near(reference::walk(mixer, x, {}, nullptr), want, 1e-10, "gated delta");
}

TEST(SelectiveStarts, StepsAndRatesAreInTheirRanges) {
  Mamba mixer({}, small_context(64, 2));
  auto p = mixer.named_parameters();
  const Tensor steps = at::softplus(p["step.bias"]);
  EXPECT_GE(steps.min().item<double>(), 1e-3 * (1 - 1e-9));
  EXPECT_LE(steps.max().item<double>(), 1e-1);
  EXPECT_GT(steps.max().item<double>() / steps.min().item<double>(), 10);
  EXPECT_NEAR(p["a_log"][5][15].item<double>(), std::log(16.0), 1e-12);
  RgLru lru({}, small_context(64, 2));
  const Tensor a = at::exp(-8 * at::softplus(lru.named_parameters()["lambda"]));
  EXPECT_GE(a.min().item<double>(), 0.9 - 1e-9);
  EXPECT_LE(a.max().item<double>(), 0.999 + 1e-9);
}

}  // namespace
}  // namespace kinfolk
