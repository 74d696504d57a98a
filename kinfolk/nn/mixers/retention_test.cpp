#include "kinfolk/nn/mixers/retention.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/feed/mlp.h"
#include "kinfolk/reference/decay.h"
#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {
using golden::Case;
using reference::Tensors;

Retention::Options options(const std::string& norm = "group", double values = 1) {
  Retention::Options o;
  o.output_norm = norm, o.values = values, o.chunk = 16;
  return o;
}

// As the article writes it, from the mixer's own weights.
TEST(RetentionMixer, IsTheFormulaOverItsProjections) {
  for (const std::string norm : {"group", "rms"}) {
    Retention mixer(options(norm, 2), reference::small_context(8, 2));
    const auto p = mixer.named_parameters();
    const Tensor x = at::randn({2, 40, 8}, at::kDouble);
    const auto heads = [&](const char* w) { return at::linear(x, p[w]).unflatten(-1, {2, -1}).transpose(1, 2); };
    const Tensor q = reference::retnet_rotation(heads("q.weight"), 0),
                 k = reference::retnet_rotation(heads("k.weight"), 0) / std::sqrt(4.0);
    const Tensor gamma = at::tensor({1 - 1.0 / 32, 1 - 1.0 / 64}, at::kDouble);
    const auto ran = reference::retention(q, k, heads("v.weight"), gamma, at::zeros({2, 2, 4, 8}, x.options()), 1);
    Tensor o = ran.out;
    if (norm == "group") o = o - o.mean(-1, true);
    o = (o / (o.square().mean(-1, true) + 1e-6).sqrt()).transpose(1, 2).flatten(2);
    const Tensor g = at::linear(x, p["swish.weight"]);
    const Tensor want = at::linear(o * g * at::sigmoid(g), p["out.weight"]);
    reference::expect_near(reference::walk(mixer, x, {}, nullptr), want, 1e-10, norm);
  }
}

TEST(RetentionMixer, FormsAgree) {
  for (const std::string norm : {"group", "rms"}) {
    Retention mixer(options(norm), reference::small_context(8, 2));
    reference::expect_forms_agree(mixer, 8);
    Retention narrow(options(norm), reference::small_context(8, 2, at::kFloat));
    reference::expect_forms_agree(narrow, 8, 1e-4);
  }
}

// Published code whose chunk form differs from the others: length 12 in chunks of 3, 13 of 5, 5 of 64.
TEST(RetentionMixer, ChunksOfAnyLengthAreTheParallelForm) {
  for (const auto& [length, chunk] : std::vector<std::pair<int64_t, int64_t>>{{12, 3}, {13, 5}, {5, 64}}) {
    Retention::Options o = options();
    o.chunk = chunk;
    for (const auto type : {at::kFloat, at::kDouble}) {
      Retention mixer(o, reference::small_context(8, 2, type));
      const Tensor x = at::randn({1, length, 8}, type);
      const Tensor want = reference::walk(mixer, x, {}, nullptr, Form::parallel);
      for (const Form form : {Form::chunked, Form::step}) {
        reference::expect_near(reference::walk(mixer, x, {}, nullptr, form), want, type == at::kFloat ? 1e-5 : 1e-12,
                               text("length ", length, " chunk ", chunk));
      }
    }
  }
}

TEST(RetentionMixer, SplitsAgree) {
  Retention mixer(options(), reference::small_context(8, 2));
  reference::expect_splits_agree(mixer, 8, 70);
}

TEST(RetentionMixer, StreamingLaws) {
  Retention mixer(options(), reference::small_context(8, 2));
  reference::expect_streaming_laws(mixer, 8, true);
}

TEST(RetentionMixer, GradientsMatchFiniteDifferences) {
  Retention::Options o = options("rms");
  o.eps = 1e-2;  // the first token's output may be small
  Retention mixer(o, reference::small_context(4, 1));
  reference::expect_mixer_gradients(mixer, 4);
}

TEST(RetentionMixer, ShiftsOfAllPositionsChangeNothing) {
  Retention mixer(options(), reference::small_context(8, 2));
  const Tensor x = at::randn({1, 20, 8}, at::kDouble);
  const Batch batch;
  const auto from = [&](int64_t start) {
    Pass pass{.batch = batch};
    pass.position = at::arange(start, start + 20).unsqueeze(0);
    return mixer.forward(x, pass, nullptr);
  };
  reference::expect_near(from(1000), from(0), 1e-9, "shifted");
}

/// The names of a golden block's weights, and the parameter of each.
const std::vector<std::pair<std::string, std::string>> kNames{
    {"q", "q"}, {"k", "k"}, {"v", "v"}, {"g", "swish"}, {"o", "out"}};

std::shared_ptr<Retention> loaded(const Case& one, at::ScalarType type, Tensors& by, std::vector<std::string>& names) {
  Retention::Options o = options(one.config.at("norm").get<std::string>());
  o.heads = one.config.at("heads").get<int64_t>();
  o.eps = one.config.at("norm_eps").get<double>();
  o.bias = one.has("param.b_q");
  const int64_t width = one.at("param.w_q").size(1);
  o.values = static_cast<double>(one.at("param.w_v").size(0)) / static_cast<double>(width);
  auto mixer = std::make_shared<Retention>(o, reference::small_context(width, o.heads, type));
  const auto p = mixer->named_parameters();
  const at::NoGradGuard guard;
  for (const auto& [golden, ours] : kNames) {
    for (const char* kind : {"weight", "bias"}) {
      const std::string name = (kind[0] == 'w' ? "w_" : "b_") + golden;
      if (!one.has("param." + name)) continue;
      const Tensor parameter = p[ours + "." + kind];
      parameter.copy_(one.at("param." + name));
      by.push_back(parameter), names.push_back(name);
    }
  }
  mixer->gamma = one.at("param.gamma").requires_grad_(true);
  by.push_back(mixer->gamma), names.push_back("gamma");
  return mixer;
}

Tensor in_pieces(Branch& mixer, const Tensor& x, const std::vector<int64_t>& pieces, State* state, Form form,
                 Tensors* states = nullptr) {
  const Batch batch;
  Tensors out;
  int64_t from = 0;
  for (int64_t n : pieces) {
    Pass pass{.batch = batch};
    pass.position = at::arange(from, from + n).unsqueeze(0).expand({x.size(0), n});
    pass.form = form;
    out.push_back(mixer.forward(x.narrow(1, from, n), pass, state));
    if (states) states->push_back(state->tensors.at(Retention::kState));
    from += n;
  }
  return at::cat(out, 1);
}

void expect_gradients_of(const Case& one, const Tensors& outputs, const std::vector<std::string>& out,
                         const Tensors& by, const std::vector<std::string>& names, at::ScalarType type) {
  Tensors cot;
  for (size_t i = 0; i < out.size(); i++) {
    golden::expect_close(outputs[i], one.at("out." + out[i]), one, out[i]);
    cot.push_back(one.at("cot." + out[i]).to(type));
  }
  const Tensors got = reference::gradients(outputs, cot, by);
  for (size_t i = 0; i < by.size(); i++) golden::expect_gradient(got[i], one.at("grad." + names[i]), one, names[i]);
}

TEST(RetentionMixer, GoldenBlock) {
  int streamed = 0;
  for (const auto& one : golden::cases("recurrent/retnet_block")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const Form form : {Form::parallel, Form::chunked, Form::step}) {
        for (const bool cut : {false, true}) {
          Tensors by;
          std::vector<std::string> names{};
          const auto mixer = loaded(one, type, by, names);
          const Tensor x = reference::leaf(one.at("in.x").to(type));
          State state = mixer->start(x.size(0), x.options());
          by.push_back(x), names.push_back("x");
          if (one.has("in.initial_state")) {
            state.tensors[Retention::kState] = reference::leaf(one.at("in.initial_state").to(type));
            by.push_back(state.tensors[Retention::kState]), names.push_back("initial_state");
          }
          const auto pieces = cut ? reference::pieces(one, x.size(1)) : std::vector<int64_t>{x.size(1)};
          Tensors states;
          const Tensor y = in_pieces(*mixer, x, pieces, &state, form, &states);
          expect_gradients_of(one, {y, state.tensors[Retention::kState]}, {"y", "final_state"}, by, names, type);
          int64_t from = 0;
          for (size_t i = 0; i < pieces.size(); i++) {
            const std::string name = text("out.final_state_after_", from += pieces[i]);
            if (one.has(name)) golden::expect_close(states[i], one.at(name), one, name), streamed++;
          }
        }
      }
    }
  }
  EXPECT_GT(streamed, 0);
}

// a = x + retention(norm x), y = a + W_2 gelu(W_1 norm(a) + b_1) + b_2: how the recipe's layer is put together.
TEST(RetentionMixer, GoldenLayer) {
  for (const auto& one : golden::cases("recurrent/retnet_layer")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      Tensors by;
      std::vector<std::string> names{};
      const auto mixer = loaded(one, type, by, names);
      const Tensor x = reference::leaf(one.at("in.x").to(type));
      const int64_t width = x.size(2);
      Context context = reference::small_context(width, 2, type);
      context.size.feed = one.at("param.w_1").size(0);
      Mlp feed(Mlp::Options{}, context);
      const double eps = one.config.at("ln_eps").get<double>();
      Norm first(context, "layer", width, true, eps), second(context, "layer", width, true, eps);
      const auto p = feed.named_parameters();
      const std::vector<std::pair<std::string, Tensor>> more{
          {"w_1", p["in.weight"]}, {"b_1", p["in.bias"]}, {"w_2", p["out.weight"]}, {"b_2", p["out.bias"]},
          {"ln1_w", first.weight}, {"ln1_b", first.bias}, {"ln2_w", second.weight}, {"ln2_b", second.bias}};
      for (const auto& [name, parameter] : more) {
        const at::NoGradGuard guard;
        parameter.copy_(one.at("param." + name));
        by.push_back(parameter), names.push_back(name);
      }
      by.push_back(x), names.push_back("x");
      State state = mixer->start(x.size(0), x.options());
      const Tensor a = x + in_pieces(*mixer, first.forward(x), {x.size(1)}, &state, Form::automatic);
      const Batch batch;
      Pass pass{.batch = batch};
      const Tensor y = a + feed.forward(second.forward(a), pass, nullptr);
      expect_gradients_of(one, {y, state.tensors[Retention::kState]}, {"y", "final_state"}, by, names, type);
    }
  }
}

TEST(RetentionMixer, RefusesWhatCannotWork) {
  EXPECT_THROW(Retention(options(), reference::small_context(6, 2)), Error);  // an odd head width cannot turn
  EXPECT_THROW(Retention(options("group", 0.3), reference::small_context(8, 2)), Error);
}

}  // namespace
}  // namespace kinfolk
