#include "kinfolk/ops/rms_norm.h"

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRows = 512;  // of a block in backward

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const std::optional<Tensor>& weight, double eps) {
    const Tensor norm = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, true);  // [..., 1]
    const Tensor scale = norm.square().div_(static_cast<double>(x.size(-1))).add_(eps).rsqrt_();
    context->save_for_backward({x, scale, weight.value_or(Tensor())});
    Tensor out = x * scale;
    if (weight) out.mul_(*weight);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const int64_t width = saved[0].size(-1);
    const Tensor x = saved[0].reshape({-1, width}), scale = saved[1].reshape({-1, 1}), &weight = saved[2];
    const Tensor g = gradients[0].reshape({-1, width});
    const bool wanted = context->needs_input_grad(0), learns = weight.defined() && context->needs_input_grad(1);
    Tensor dx, dw;
    if (wanted) dx = at::empty({x.size(0), width}, x.options());
    if (learns) dw = at::zeros({width}, weight.options());
    for (int64_t from = 0; from < x.size(0); from += kRows) {
      const int64_t count = std::min(kRows, x.size(0) - from);
      const auto block = [&](const Tensor& t) { return t.narrow(0, from, count); };
      const Tensor unit = block(x) * block(scale);
      if (learns) dw.add_((block(g) * unit).sum(0));
      if (!wanted) continue;
      const Tensor slope = weight.defined() ? block(g) * weight : block(g);
      const Tensor along = (slope * unit).mean(-1, true);  // [n, 1]
      block(dx).copy_(slope).addcmul_(unit, along, -1).mul_(block(scale));
    }
    return {wanted ? dx.view(saved[0].sizes()) : dx, dw, Tensor()};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const bool exact = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble;
  if (!exact || x.numel() == 0 || (weight.defined() && weight.scalar_type() != x.scalar_type())) {
    return at::rms_norm(x, {x.size(-1)}, weight.defined() ? std::optional(weight) : std::nullopt, eps);
  }
  return RmsNorm::apply(x, weight.defined() ? std::optional(weight) : std::nullopt, eps);
}

}  // namespace kinfolk
