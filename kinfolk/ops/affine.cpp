#include "kinfolk/ops/affine.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kFewestRows = 16;  // below, the call costs more than it saves

using Product = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                       c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

const std::optional<c10::TypedOperatorHandle<Product>>& product_handle() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<Product>> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found) return std::nullopt;
    return found->typed<Product>();
  }();
  return handle;
}

std::optional<Tensor> given(const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; }

/// Of two axes, dense row by row or column by column: what lies wider apart, such as some columns of a larger tensor,
/// is multiplied by a slow reference in oneDNN.
Tensor dense(const Tensor& t) { return t.is_contiguous() || t.t().is_contiguous() ? t : t.contiguous(); }

/// x w^T + b, both of two axes and dense.
Tensor product(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b = {}) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return product_handle()->call(x, w, b, "none", c10::List<std::optional<at::Scalar>>(), "");
}

bool processor_gains() {
#if defined(__x86_64__)
  static const bool gains =
      !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  return gains;
#else
  return false;
#endif
}

struct OnednnAffine : torch::autograd::Function<OnednnAffine> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    context->saved_data["bias"] = bias.has_value();
    const Tensor rows = dense(x.reshape({-1, x.size(-1)}));  // [N, in]
    context->save_for_backward({rows, weight});
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return product(rows, dense(weight), bias).view(sizes);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &rows = saved[0], &weight = saved[1];
    if (!gradients[0].defined()) return {Tensor(), Tensor(), Tensor()};
    const Tensor g = dense(gradients[0].reshape({-1, weight.size(0)}));  // [N, out]
    std::vector<int64_t> sizes = gradients[0].sizes().vec();
    sizes.back() = weight.size(1);
    variable_list out(3);
    if (context->needs_input_grad(0)) out[0] = product(g, dense(weight).t()).view(sizes);
    if (context->needs_input_grad(1)) out[1] = product(g.t(), rows.t());
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) out[2] = g.sum(0);
    return out;
  }
};

}  // namespace

bool affine_by_onednn(const Tensor& x, const Tensor& weight, bool anywhere) {
  return (anywhere || processor_gains()) && x.dim() >= 2 && x.scalar_type() == at::kFloat &&
         weight.scalar_type() == at::kFloat && x.is_cpu() && weight.is_cpu() && x.numel() > 0 && weight.numel() > 0 &&
         x.size(-1) == weight.size(1) && x.numel() / x.size(-1) >= kFewestRows &&
         !at::autocast::is_autocast_enabled(at::kCPU) && product_handle().has_value();
}

Tensor affine_onednn(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return OnednnAffine::apply(x, weight, given(bias));
}

Tensor affine(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (affine_by_onednn(x, weight)) return affine_onednn(x, weight, bias);
  return at::linear(x, weight, given(bias));
}

}  // namespace kinfolk
