#include "kinfolk/nn/recompute.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

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
  Types types;  // of the forward call
  variable_list inputs, parameters;
};

struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, at::TensorList parameters, Rerun f) {
    auto kept = c10::make_intrusive<Kept>();
    kept->f = std::move(f);
    for (const Tensor& input : inputs) kept->inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    kept->parameters = parameters.vec();
    variable_list outputs = kept->f(inputs.vec(), false);
    context->saved_data["kept"] = c10::IValue::make_capsule(std::move(kept));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(context->saved_data["kept"].toCapsule());
    const at::AutoGradMode graph(true);
    variable_list inputs;
    for (const Tensor& input : kept->inputs) inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    const variable_list outputs = [&] {
      const InTypes types(kept->types);
      return kept->f(inputs, true);
    }();

    variable_list roots, root_gradients, wanted;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    std::vector<size_t> slots;
    const size_t count = inputs.size();
    for (size_t i = 0; i < count + kept->parameters.size(); ++i) {
      const Tensor& tensor = i < count ? inputs[i] : kept->parameters[i - count];
      if (tensor.requires_grad()) wanted.push_back(tensor), slots.push_back(i);
    }
    variable_list out(count + kept->parameters.size() + 1);  // the last slot is f's
    if (roots.empty() || wanted.empty()) return out;
    const variable_list found = torch::autograd::grad(roots, wanted, root_gradients, {}, false, true);
    for (size_t i = 0; i < slots.size(); ++i) out[slots[i]] = found[i];
    return out;
  }
};

}  // namespace

std::vector<Tensor> recompute(Rerun f, const std::vector<Tensor>& inputs, const std::vector<Tensor>& parameters) {
  return Recompute::apply(at::TensorList(inputs), at::TensorList(parameters), std::move(f));
}

}  // namespace kinfolk
