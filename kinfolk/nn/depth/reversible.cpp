#include "kinfolk/nn/depth/reversible.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/recompute.h"
#include "kinfolk/nn/residual/add.h"

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A branch of the stack that takes its turn, where its state is, and F_n.
struct Turn {
  std::shared_ptr<Layer> layer;
  size_t index;  ///< in the layer
  std::string layer_part;

  /// The branch reads the stream in the type of the model.
  Tensor run(const Tensor& stream, at::ScalarType type, Pass& pass, State* state) const {
    const Step& step = layer->steps()[index];
    const Tensor x = stream.to(type);
    return step.branch->forward(step.norm_before ? step.norm_before->forward(x) : x, pass, state);
  }
  State* inside(State* state) const {
    for (const std::string& name : {layer_part, "branch." + std::to_string(index)}) {
      if (!state) return nullptr;
      const auto found = state->parts.find(name);
      state = found == state->parts.end() ? nullptr : &found->second;
    }
    return state;
  }
};

/// All branches in order; refuses those that cannot be undone.
std::vector<Turn> turns_of(const Reversible::Layers& layers) {
  std::vector<Turn> out;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& steps = layers[i]->steps();
    for (size_t n = 0; n < steps.size(); ++n) {
      const auto refused = [&](const char* what, const std::string& expected, const std::string& found) {
        fail("[layers.branches.", n, ".", what, "] of layer ", i, " (", steps[n].kind, ") expected ", expected,
             " under the reversible depth, which gets a layer's input back by subtracting what its branch added; ",
             "found ", found);
      };
      if (steps[n].norm_after) refused("norm", "\"before\" or \"none\"", "a norm after the sum");
      if (!dynamic_cast<const Add*>(steps[n].residual.get())) refused("residual", "\"add\"", "another one");
      out.push_back({layers[i], n, "layer." + std::to_string(i)});
    }
  }
  return out;
}

constexpr double kGrid = 4294967296.0;  // 2^32 steps of a stream to 1: exact in a double up to 2^21

/// Values as streams hold them: doubles on a grid, between which sums and differences are exact. Doubles stay.
Tensor on_grid(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kDouble).mul_(kGrid).round_().div_(kGrid);
}

/// on_grid, whose gradient is that of the number that was rounded.
struct OnGrid : torch::autograd::Function<OnGrid> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->saved_data["type"] = static_cast<int64_t>(x.scalar_type());
    return on_grid(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0].to(static_cast<at::ScalarType>(context->saved_data["type"].toInt()))};
  }
};
Tensor to_stream(const Tensor& x) { return x.scalar_type() == at::kDouble ? x : OnGrid::apply(x); }

/// Where backward stands: h_(n-1) and h_n of the step n that is next, from the last step down.
class Tape {
 public:
  void finish(const Reversible::Streams& streams, int64_t steps) {
    end_ = {streams.first.detach(), streams.second.detach()};
    steps_ = steps;
  }
  /// h_(n-1); the last step starts from the end, also when backward runs a second time.
  Tensor input(int64_t n) {
    if (n == steps_) now_ = end_, next_ = n;
    if (n != next_) fail("[depth.reversible] expected step ", next_, " of backward; found ", n);
    return now_.first;
  }
  void undo(const Tensor& branch) {
    Tensor earlier = now_.second - on_grid(branch.detach());  // h_(n-2)
    now_.second = std::move(now_.first), now_.first = std::move(earlier);
    if (--next_ == 0) now_ = {};
  }

 private:
  Reversible::Streams end_, now_;
  int64_t steps_ = 0, next_ = 0;
};

/// The same tensors, whose gradients arrive together: one node below all that the stack gives, so that backward passes
/// its steps in order, also where a loss reaches it by a state or an auxiliary loss alone.
struct Gate : torch::autograd::Function<Gate> {
  static variable_list forward(AutogradContext* context, at::TensorList tensors) {
    context->set_materialize_grads(false);
    variable_list out;
    for (const Tensor& tensor : tensors) out.push_back(tensor.detach());
    return out;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) { return gradients; }
};

void pass_gate(Reversible::Streams& streams, const Pass& pass, State* state) {
  std::vector<Tensor*> ends{&streams.first, &streams.second};
  if (pass.losses)
    for (auto& [name, loss] : *pass.losses) ends.push_back(&loss);
  std::erase_if(ends, [](const Tensor* end) { return !end->requires_grad(); });
  variable_list tensors;
  for (const Tensor* end : ends) tensors.push_back(*end);
  if (state) {
    state->transform([&](const Tensor& t) {
      if (t.requires_grad()) tensors.push_back(t);
      return t;
    });
  }
  if (tensors.empty()) return;
  const variable_list out = Gate::apply(at::TensorList(tensors));
  size_t next = 0;
  for (Tensor* end : ends) *end = out[next++];
  if (state) state->transform([&](const Tensor& t) { return t.requires_grad() ? out[next++] : t; });
}

}  // namespace

State Reversible::start(const Layers& layers, int64_t batch, at::TensorOptions like) const {
  turns_of(layers);
  return Once::start(layers, batch, like);
}

Reversible::Streams Reversible::forward(Streams given, const Layers& layers, Pass& pass, State* state) const {
  const auto turns = turns_of(layers);
  const at::ScalarType type = given.first.scalar_type();
  Streams h{to_stream(given.first), {}};
  h.second = given.second.is_same(given.first) ? h.first : to_stream(given.second);
  given = {};
  const bool recomputes = options_.activations == "recomputed" && at::GradMode::is_enabled();
  const auto tape = std::make_shared<Tape>();
  for (size_t i = 0; i < turns.size(); ++i) {
    const Turn& turn = turns[i];
    State* own = turn.inside(state);
    Tensor read;
    if (recomputes) {
      const auto part = [turn, tape, type](const std::vector<Tensor>& in, Pass& once, State* local) {
        const Tensor out = turn.run(in[0], type, once, local);
        if (at::GradMode::is_enabled()) tape->undo(out);  // in backward
        return out;
      };
      const auto n = static_cast<int64_t>(i + 1);
      read = recompute_part(turn.layer, part, {h.second}, pass, own, [tape, n] { return tape->input(n); });
    } else {
      read = turn.run(h.second, type, pass, own);
    }
    Tensor next = h.first + to_stream(read);
    h.first = std::move(h.second), h.second = std::move(next);
  }
  if (recomputes) {
    tape->finish(h, static_cast<int64_t>(turns.size()));
    pass_gate(h, pass, state);
  }
  return h;
}

Reversible::Streams Reversible::inverse(Streams given, const Layers& layers, Pass& pass, at::ScalarType type) const {
  const auto turns = turns_of(layers);
  Streams h{to_stream(given.first), to_stream(given.second)};
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    Tensor earlier = h.second - to_stream(turn->run(h.first, type, pass, nullptr));
    h.second = std::move(h.first), h.first = std::move(earlier);
  }
  return h;
}

Tensor Reversible::run(Tensor x, const Layers& layers, const ReadOut&, Pass& pass, State* state) {
  const at::ScalarType type = x.scalar_type();
  const Streams h = forward({x, x}, layers, pass, state);
  const Tensor sum = h.first + h.second;
  return (options_.join == "mean" ? sum / 2 : sum).to(type);
}

}  // namespace kinfolk
