#include "kinfolk/nn/score/span.h"

namespace kinfolk {

Span::Span(const Options& options, const Context& context) : options_(options) {
  if (!context.heads.causal) fail("[", context.path, "] expected a causal pattern; found one that sees the future");
  a = register_parameter("a", fill_parameter(context, {context.heads.count}, -2));
}

Tensor Span::z() const { return static_cast<double>(options_.longest) * a.to(at::kDouble).sigmoid(); }

Tensor Span::table(const Tensor& distance) const {
  const double ramp = static_cast<double>(options_.ramp);
  const Tensor m = ((ramp + z().unsqueeze(1) - distance.to(at::kDouble)) / ramp).clamp(0, 1);  // [H, n]
  Tensor out = m.clamp_min(1e-300).log().masked_fill(m.le(1e-300), -INFINITY);
  return options_.own ? out : out.masked_fill(distance.eq(0), -INFINITY);
}

void Span::add_losses(Pass& pass) {
  if (pass.losses) add_loss(pass, "span", z().mean().to(a.scalar_type()));
}

}  // namespace kinfolk
