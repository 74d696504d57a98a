// The laws of a streaming mixer, for the tests of each: one answer for every form, every split, every kind of padding.
#pragma once
#include <string>
#include <vector>

#include "kinfolk/nn/family.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk::reference {

struct Lanes {
  Tensor valid = {}, first = {};
};

inline Context small_context(int64_t width = 6, int64_t heads = 2, at::ScalarType type = at::kDouble) {
  Context context;
  context.size.width = width;
  context.size.heads = heads;
  context.like = at::TensorOptions().dtype(type);
  context.generator = at::detail::createCPUGenerator(17);
  context.path = "mixer";
  return context;
}

/// x [B, L, D] through a mixer in pieces with a state (in `state` afterwards), or at once without one (no pieces).
inline Tensor walk(Branch& mixer, const Tensor& x, const std::vector<int64_t>& pieces, State* state,
                   Form form = Form::automatic, const Lanes& lanes = {}) {
  const Batch batch;
  const auto part = [&](const Tensor& t, int64_t from, int64_t n) { return t.defined() ? t.narrow(1, from, n) : t; };
  const Tensor valid = lanes.valid.defined() ? lanes.valid : at::ones({x.size(0), x.size(1)}, at::kBool);
  const Tensor position = (valid.cumsum(1) - 1).masked_fill(valid.logical_not(), -1);  // as a model counts
  std::vector<Tensor> out;
  int64_t from = 0;
  for (int64_t n : pieces.empty() ? std::vector<int64_t>{x.size(1)} : pieces) {
    Pass pass{.batch = batch};
    pass.position = part(position, from, n);
    pass.valid = part(lanes.valid, from, n);
    pass.first = part(lanes.first, from, n);
    pass.form = form;
    out.push_back(mixer.forward(x.narrow(1, from, n), pass, state));
    from += n;
  }
  return at::cat(out, 1);
}

/// Outputs, last state, and the gradients of both by x and by every parameter.
inline Tensors walk_with_gradients(Branch& mixer, const Tensor& x, const std::vector<int64_t>& pieces, Form form,
                                   const Lanes& lanes) {
  const Tensor in = leaf(x);
  State state = mixer.start(x.size(0), x.options());
  Tensors outputs{walk(mixer, in, pieces, &state, form, lanes)};
  for (const auto& [name, tensor] : state.flat()) outputs.push_back(tensor);
  Tensors by{in};
  for (const Tensor& p : mixer.parameters()) by.push_back(p);
  const Tensors got = gradients(outputs, cotangents(outputs), by);
  for (const Tensor& g : got) outputs.push_back(g);
  return outputs;
}

inline void expect_all_near(const Tensors& got, const Tensors& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); i++) expect_near(got[i], want[i], tolerance, text(what, " tensor ", i));
}

inline Lanes random_lanes(int64_t B, int64_t L) { return {at::rand({B, L}) > 0.2, at::rand({B, L}) > 0.93}; }

inline void expect_forms_agree(Branch& mixer, int64_t width, double tolerance = 1e-10) {
  at::manual_seed(1);
  const auto like = mixer.parameters()[0].options().requires_grad(false);
  for (const bool marked : {false, true}) {
    const Tensor x = at::randn({2, 70, width}, like);
    const Lanes lanes = marked ? random_lanes(2, 70) : Lanes{};
    const Tensors want = walk_with_gradients(mixer, x, {}, Form::step, lanes);
    for (const Form form : {Form::automatic, Form::parallel, Form::chunked}) {
      expect_all_near(walk_with_gradients(mixer, x, {}, form, lanes), want, tolerance,
                      text("form ", static_cast<int>(form), " marked ", marked));
    }
    expect_near(walk(mixer, x, {}, nullptr, Form::automatic, lanes), want[0], tolerance, "without a state");
  }
}

/// Every split point of a sequence, values and gradients, with gaps and borders; then many pieces, and single tokens.
inline void expect_splits_agree(Branch& mixer, int64_t width, int64_t length = 130) {
  at::manual_seed(2);
  const Tensor x = at::randn({2, length, width}, at::kDouble);
  const Lanes lanes = random_lanes(2, length);
  const Tensors want = walk_with_gradients(mixer, x, {}, Form::automatic, lanes);
  for (int64_t split = 1; split < length; split++) {
    expect_all_near(walk_with_gradients(mixer, x, {split, length - split}, Form::automatic, lanes), want, 1e-10,
                    text("split ", split));
  }
  expect_all_near(walk_with_gradients(mixer, x, {1, 2, 3, length - 6}, Form::automatic, lanes), want, 1e-10, "pieces");
  expect_all_near(
      walk_with_gradients(mixer, x, std::vector<int64_t>(static_cast<size_t>(length), 1), Form::automatic, lanes), want,
      1e-10, "single tokens");
}

/// Prompts of 3 and 11 tokens, left-padded into one batch, then single tokens: each lane is as if alone.
inline void expect_left_padding(Branch& mixer, int64_t width) {
  at::manual_seed(3);
  const Tensor x = at::randn({2, 16, width}, at::kDouble);
  Lanes lanes{at::ones({2, 16}, at::kBool), {}};
  lanes.valid[0].narrow(0, 0, 8).fill_(false);
  State state = mixer.start(2, x.options());
  const Tensor got = walk(mixer, x, {11, 1, 1, 1, 1, 1}, &state, Form::automatic, lanes);
  EXPECT_EQ(got[0].narrow(0, 0, 8).abs().max().item<double>(), 0);
  State alone = mixer.start(1, x.options());
  const Tensor first = walk(mixer, x.narrow(0, 0, 1).narrow(1, 8, 8), {3, 1, 1, 1, 1, 1}, &alone);
  expect_near(got.narrow(0, 0, 1).narrow(1, 8, 8), first, 1e-12, "short lane");
  for (const auto& [name, tensor] : state.flat()) expect_near(tensor[0], alone.flat().at(name)[0], 1e-12, name);
  expect_near(got[1], walk(mixer, x.narrow(0, 1, 1), {}, nullptr)[0], 1e-12, "long lane");
}

/// Three masked tokens in the middle: what they hold changes nothing, the state passes through as it was.
inline void expect_gaps_do_nothing(Branch& mixer, int64_t width) {
  at::manual_seed(4);
  const Tensor x = at::randn({1, 20, width}, at::kDouble);
  Lanes lanes{at::ones({1, 20}, at::kBool), {}};
  lanes.valid.narrow(1, 8, 3).fill_(false);
  const Tensors want = walk_with_gradients(mixer, x, {}, Form::automatic, lanes);
  for (const double other : {0.0, 1e6, static_cast<double>(NAN)}) {
    Tensor changed = x.clone();
    changed.narrow(1, 8, 3).fill_(other);
    expect_all_near(walk_with_gradients(mixer, changed, {}, Form::automatic, lanes), want, 1e-12,
                    text("gap of ", other));
  }
  const Tensor cut = at::cat({x.narrow(1, 0, 8), x.narrow(1, 11, 9)}, 1), plain = walk(mixer, cut, {}, nullptr);
  expect_near(want[0].narrow(1, 0, 8), plain.narrow(1, 0, 8), 1e-12, "before the gap");
  expect_near(want[0].narrow(1, 11, 9), plain.narrow(1, 8, 9), 1e-12, "after the gap");
  State state = mixer.start(1, x.options());
  walk(mixer, x.narrow(1, 0, 8), {}, &state);
  const State kept = state.clone();
  walk(mixer, x.narrow(1, 8, 3), {}, &state, Form::automatic, {at::zeros({1, 3}, at::kBool), {}});
  for (const auto& [name, tensor] : state.flat()) expect_near(tensor, kept.flat().at(name), 0, name);
}

/// Two documents in one lane are two sequences. The state of the second is as if alone unless keys in it are turned by
/// their positions in the lane (`turned`).
inline void expect_documents_apart(Branch& mixer, int64_t width, bool turned = false) {
  at::manual_seed(5);
  const Tensor x = at::randn({1, 90, width}, at::kDouble);
  Lanes lanes{{}, at::zeros({1, 90}, at::kBool)};
  lanes.first[0][37].fill_(true);
  State state = mixer.start(1, x.options()), alone = mixer.start(1, x.options());
  const Tensor got = walk(mixer, x, {30, 60}, &state, Form::automatic, lanes);
  expect_near(got.narrow(1, 0, 37), walk(mixer, x.narrow(1, 0, 37), {}, nullptr), 1e-12, "first document");
  expect_near(got.narrow(1, 37, 53), walk(mixer, x.narrow(1, 37, 53), {}, &alone), 1e-12, "second document");
  if (turned) return;
  for (const auto& [name, tensor] : state.flat()) expect_near(tensor, alone.flat().at(name), 1e-12, name);
}

/// Short prompts then single tokens equal the whole; any length, in training and in evaluation, gives one state layout.
inline void expect_any_length(Branch& mixer, int64_t width) {
  at::manual_seed(6);
  const Tensor x = at::randn({2, 65, width}, at::kDouble);
  const Tensor whole = walk(mixer, x, {}, nullptr);
  for (const bool training : {true, false}) {
    mixer.train(training);
    const State layout = mixer.start(2, x.options());
    for (int64_t length : {1, 2, 3, 63, 64, 65}) {
      State state = layout.clone();
      std::vector<int64_t> pieces{length};
      pieces.insert(pieces.end(), static_cast<size_t>(65 - length), 1);
      expect_near(walk(mixer, x, pieces, &state), whole, 1e-10, text("prompt of ", length));
      State one = layout.clone();
      expect_near(walk(mixer, x.narrow(1, 0, length), {}, &one), whole.narrow(1, 0, length), 1e-10, "whole prompt");
      ASSERT_EQ(one.flat().size(), layout.flat().size());
      for (const auto& [name, tensor] : layout.flat()) {
        EXPECT_EQ(one.flat().at(name).sizes(), tensor.sizes()) << name << " after " << length;
        EXPECT_EQ(one.flat().at(name).scalar_type(), tensor.scalar_type()) << name;
      }
      EXPECT_EQ(one.bytes(), layout.bytes());
    }
  }
}

/// The whole mixer by central differences: x, carried state and every parameter.
inline void expect_mixer_gradients(Branch& mixer, int64_t width) {
  at::manual_seed(7);
  const Tensors state_now = [&] {
    Tensors all;
    for (const auto& [name, tensor] : mixer.start(2, at::kDouble).flat()) all.push_back(at::randn_like(tensor).abs());
    return all;
  }();
  Tensors inputs{at::randn({2, 5, width}, at::kDouble)};
  inputs.insert(inputs.end(), state_now.begin(), state_now.end());
  const auto f = [&](const Tensors& in) {
    State state = mixer.start(2, at::kDouble);
    std::map<std::string, Tensor> flat = state.flat();
    size_t i = 1;
    for (auto& [name, tensor] : flat) tensor = in[i++];
    state = State::from_flat(flat);
    Tensors out{walk(mixer, in[0], {2, 3}, &state, Form::chunked)};
    for (const auto& [name, tensor] : state.flat()) out.push_back(tensor);
    return out;
  };
  expect_gradients(f, inputs, "mixer");
  for (const Tensor& p : mixer.parameters()) {
    const auto g = [&](const Tensors& in) {
      const Tensor kept = p.detach().clone();
      // The parameter is stood for by its own storage, so that finite differences reach it.
      at::NoGradGuard guard;
      p.copy_(in[0]);
      Tensors out = f(inputs);
      p.copy_(kept);
      return out;
    };
    const Tensors outputs = f(leaves(inputs)), cot = cotangents(outputs);  // leaves: a state may hold nothing but x
    const Tensor got = gradients(outputs, cot, {p})[0];
    Tensor want = at::empty_like(got).contiguous();
    for (int64_t e = 0; e < p.numel(); e++) {
      const auto value = [&](double step) {
        Tensor moved = p.detach().clone();
        moved.view(-1)[e].add_(step);
        double sum = 0;
        const Tensors out = g({moved});
        for (size_t i = 0; i < out.size(); i++) sum += (out[i] * cot[i]).sum().item<double>();
        return sum;
      };
      want.view(-1)[e].fill_((value(1e-5) - value(-1e-5)) / 2e-5);
    }
    expect_near(got, want, 1e-7, "parameter");
  }
}

inline void expect_streaming_laws(Branch& mixer, int64_t width, bool turned = false) {
  expect_left_padding(mixer, width);
  expect_gaps_do_nothing(mixer, width);
  expect_documents_apart(mixer, width, turned);
  expect_any_length(mixer, width);
  const Traits traits = mixer.traits();
  EXPECT_TRUE(traits.causal && traits.streams && traits.bounded && traits.relative && traits.carries);
}

/// float32 against double over 4096 tokens, the same parameters: largest difference over largest value.
inline void expect_float_close(Branch& narrow, Branch& wide, int64_t width, double tolerance = 1e-4) {
  at::NoGradGuard guard;
  at::manual_seed(8);
  const auto from = wide.parameters();
  auto to = narrow.parameters();
  for (size_t i = 0; i < to.size(); i++) to[i].copy_(from[i]);
  for (size_t i = 0; i < to.size(); i++) from[i].copy_(to[i]);
  const Tensor x = at::randn({1, 4096, width}, at::kFloat);
  State state = narrow.start(1, x.options()), exact = wide.start(1, at::kDouble);
  const Tensor got = walk(narrow, x, {}, &state), want = walk(wide, x.to(at::kDouble), {}, &exact);
  EXPECT_LE(((got.to(at::kDouble) - want).abs().max() / want.abs().max()).item<double>(), tolerance);
  for (const auto& [name, tensor] : exact.flat()) {
    const double off =
        ((state.flat().at(name).to(at::kDouble) - tensor).abs().max() / tensor.abs().max()).item<double>();
    EXPECT_LE(off, tolerance) << name;
  }
}

}  // namespace kinfolk::reference
