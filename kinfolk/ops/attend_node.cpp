#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/attend_call.h"

namespace kinfolk {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// A node of the graph with as many inputs as a call has (Function<> takes a fixed number of tensors).
struct AttendNode : torch::autograd::Node {
  variable_list apply(variable_list&& grads) override {
    if (at::GradMode::is_enabled()) fail("[attend] expected first derivatives; the backward pass has no derivative");
    const c10::impl::ExcludeDispatchKeyGuard own_types(c10::autocast_dispatch_keyset);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined() && !grads[1].defined()) return variable_list(inputs.size());
    std::vector<Tensor> tensors;
    std::vector<bool> wanted;
    for (size_t i = 0; i < inputs.size(); ++i) {
      tensors.push_back(inputs[i].unpack());
      wanted.push_back(task_should_compute_output(i));
    }
    const auto self = c10::intrusive_ptr<Node>::unsafe_reclaim_from_nonowning(this);
    return backward(*call, tensors, {out.unpack(self), lse.unpack(self)}, grads[0], grads[1], wanted);
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& x : inputs) x.reset_data();
    out.reset_data();
    lse.reset_data();
  }
  std::string name() const override { return "AttendBackward"; }

  std::shared_ptr<AttendCall> call;
  AttendBackward backward = nullptr;
  std::vector<SavedVariable> inputs;
  SavedVariable out, lse;
};

}  // namespace

Read attend_node(const std::shared_ptr<AttendCall>& call, const std::vector<Tensor>& inputs,
                 Read (*forward)(AttendCall&, const std::vector<Tensor>&), AttendBackward backward) {
  const bool remember = at::GradMode::is_enabled() &&
                        std::any_of(inputs.begin(), inputs.end(), [](const Tensor& x) { return x.requires_grad(); });
  Read read;
  {
    const at::NoGradGuard guard;
    const c10::impl::ExcludeDispatchKeyGuard own_types(c10::autocast_dispatch_keyset);
    read = forward(*call, inputs);
  }
  if (!remember) return read;
  const auto node = c10::make_intrusive<AttendNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  node->call = call;
  node->backward = backward;
  for (const Tensor& x : inputs) node->inputs.emplace_back(x, false);
  torch::autograd::set_history(read.out, node);
  torch::autograd::set_history(read.lse, node);
  node->out = SavedVariable(read.out, true);
  node->lse = SavedVariable(read.lse, true);
  return read;
}

}  // namespace kinfolk
