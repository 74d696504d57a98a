#include "kinfolk/nn/recompute.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include "kinfolk/nn/layer.h"

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Types {
  bool on = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
};

/// Computes in the given types while it lives: backward runs outside the caller's autocast.
class InTypes {
 public:
  explicit InTypes(const Types& types) { set(types); }
  ~InTypes() {
    at::autocast::clear_cache();
    set(before_);
  }
  InTypes(const InTypes&) = delete;
  InTypes& operator=(const InTypes&) = delete;

 private:
  static void set(const Types& types) {
    at::autocast::set_autocast_enabled(at::kCPU, types.on);
    at::autocast::set_autocast_dtype(at::kCPU, types.type);
  }
  const Types before_;
};

struct Kept : torch::CustomClassHolder {
  Rerun f;
  Recall recall;             // of the first input; none: it is kept
  Types types;               // of the forward call
  variable_list inputs;      // those without a gradient; the others are the graph's, which lets go of them when it can
  std::vector<bool> wanted;  // of each input
  variable_list parameters;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, at::TensorList parameters, Rerun f,
                               Recall recall) {
    auto kept = c10::make_intrusive<Kept>();
    kept->f = std::move(f), kept->recall = std::move(recall);
    variable_list saved;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& input = inputs[i];
      const bool wanted = input.requires_grad(), recalled = i == 0 && kept->recall;
      kept->wanted.push_back(wanted);
      if (wanted && !recalled) saved.push_back(input);
      kept->inputs.push_back(wanted || recalled ? Tensor() : input);
    }
    context->save_for_backward(std::move(saved));
    kept->parameters = parameters.vec();
    variable_list outputs = kept->f(inputs.vec(), false);
    context->saved_data["kept"] = c10::IValue::make_capsule(std::move(kept));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data["kept"].toCapsule());
    const at::AutoGradMode graph(true);
    variable_list inputs, saved = context->get_saved_variables();
    for (size_t i = 0, next = 0; i < kept->inputs.size(); ++i) {
      const bool wanted = kept->wanted[i], recalled = i == 0 && kept->recall;
      const Tensor input = recalled ? kept->recall() : wanted ? saved[next++] : kept->inputs[i];
      inputs.push_back(input.detach().set_requires_grad(wanted));
    }
    saved.clear();
    variable_list outputs = [&] {
      const InTypes types(kept->types);
      return kept->f(inputs, true);
    }();

    torch::autograd::edge_list roots, wanted;  // edges: the outputs themselves are not needed any more
    variable_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
        root_gradients.push_back(std::move(gradients[i]));
      }
    outputs.clear();
    std::vector<size_t> slots;
    const size_t count = inputs.size();
    for (size_t i = 0; i < count + kept->parameters.size(); ++i) {
      const Tensor& tensor = i < count ? inputs[i] : kept->parameters[i - count];
      if (tensor.requires_grad()) wanted.push_back(torch::autograd::impl::gradient_edge(tensor)), slots.push_back(i);
    }
    variable_list out(count + kept->parameters.size() + 2);  // the last slots are those of f and recall
    if (roots.empty() || wanted.empty()) return out;
    const variable_list found =
        torch::autograd::Engine::get_default_engine().execute(roots, root_gradients, false, false, false, wanted);
    for (size_t i = 0; i < slots.size(); ++i) out[slots[i]] = found[i];
    return out;
  }
};

}  // namespace

std::vector<Tensor> recompute(Rerun f, const std::vector<Tensor>& inputs, const std::vector<Tensor>& parameters,
                              Recall recall) {
  return Recompute::apply(at::TensorList(inputs), at::TensorList(parameters), std::move(f), std::move(recall));
}

Tensor recompute_part(const std::shared_ptr<torch::nn::Module>& owner, const ModelPart& f, std::vector<Tensor> inputs,
                      Pass& pass, State* state, Recall recall) {
  struct Held {
    std::shared_ptr<torch::nn::Module> owner;
    Batch batch;
    Tensor position, valid, document, first;
    Form form;
    uint64_t seed, draws, draws_after = 0;
    int64_t newest;
    State before, after;
    std::vector<std::string> losses;
  };
  auto held = std::make_shared<Held>();
  held->owner = owner;
  held->batch = pass.batch;
  held->position = pass.position, held->valid = pass.valid, held->document = pass.document, held->first = pass.first;
  held->form = pass.form, held->seed = pass.seed, held->draws = pass.draws;
  held->newest = pass.newest;

  const size_t given = inputs.size();
  if (state) {
    held->before = *state;
    held->before.transform([&](const Tensor& t) {
      inputs.push_back(t);
      return t.detach();
    });
  }
  std::vector<Tensor> parameters;
  for (const auto& [name, parameter] : trainable(*owner)) parameters.push_back(parameter);

  auto rerun = [f, held, given, streams = state != nullptr, trace = pass.trace, updates = pass.updates,
                collects = pass.losses != nullptr](const std::vector<Tensor>& in, bool again) {
    Pass own{held->batch};
    own.position = held->position, own.valid = held->valid, own.document = held->document, own.first = held->first;
    own.form = held->form, own.seed = held->seed, own.draws = held->draws;
    own.newest = held->newest;
    std::map<std::string, Tensor> losses;
    if (collects) own.losses = &losses;
    if (!again) own.trace = trace, own.updates = updates;
    State local = held->before;
    size_t next = given;
    local.transform([&](const Tensor&) { return in[next++]; });
    std::vector<Tensor> out{f({in.begin(), in.begin() + static_cast<int64_t>(given)}, own, streams ? &local : nullptr)};
    for (const auto& [name, value] : losses) {
      out.push_back(value);
      if (!again) held->losses.push_back(name);
    }
    if (streams) {
      local.transform([&](const Tensor& t) {
        out.push_back(t);
        return again ? t : t.detach();
      });
      if (!again) held->after = local;
    }
    held->draws_after = own.draws;
    return out;
  };
  const std::vector<Tensor> out = recompute(rerun, inputs, parameters, std::move(recall));
  size_t next = 1;
  for (const auto& name : held->losses) add_loss(pass, name, out[next++]);
  if (state) {
    *state = std::move(held->after);
    state->transform([&](const Tensor&) { return out[next++]; });
  }
  pass.draws = held->draws_after;
  return out[0];
}

}  // namespace kinfolk
