#include "kinfolk/nn/score/dynamic_span.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

DynamicSpan::DynamicSpan(const Options& options, const Context& context) : options_(options) {
  if (!context.heads.causal) fail("[", context.path, "] expected a causal pattern; found one that sees the future");
  v = register_parameter("v", draw_parameter(context, {context.heads.count, context.size.width}, 0.02));
  b = register_parameter("b", fill_parameter(context, {context.heads.count}, options.start));
}

Tensor DynamicSpan::z(const Tensor& x) const {
  const Tensor logit = at::linear(x, v, b);  // [B, L, H]
  const auto type = logit.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (static_cast<double>(options_.longest) * logit.to(type).sigmoid()).transpose(1, 2);
}

Tensor DynamicSpan::of_queries(const Tensor& x, Pass& pass) {
  const Tensor spans = z(x);  // [B, H, L]
  if (pass.losses) {
    const Tensor each = spans.mean(1);  // [B, L]
    if (pass.valid.defined()) {
      const Tensor counts = pass.valid.to(each.scalar_type());
      add_loss(pass, "span", (each * counts).sum() / counts.sum().clamp_min(1));
    } else {
      add_loss(pass, "span", each.mean());
    }
  }
  return spans.unsqueeze(-1);
}

std::optional<QuerySpan> DynamicSpan::spans(const Tensor& q_raw) {
  return QuerySpan{q_raw.select(-1, q_raw.size(-1) - 1), static_cast<double>(options_.ramp), options_.own};
}

Tensor DynamicSpan::apply(const Tile& tile, const std::vector<Tensor>&) {
  constexpr double kNone = 1e-30;  // of m: float32 has it, and the gradient of log m below it is not taken
  const auto type = tile.scores.scalar_type();
  const double ramp = static_cast<double>(options_.ramp);
  const Tensor spans = tile.q.narrow(-1, tile.q.size(-1) - 1, 1).to(type);        // [B, H, Lq, 1]
  const Tensor m = ((spans + ramp - tile.distance.to(type)) / ramp).clamp(0, 1);  // [B, H, Lq, Lk]
  Tensor unseen = m.le(kNone);
  if (!options_.own) unseen = unseen.logical_or(tile.distance.eq(0));
  return (tile.scores + m.clamp_min(kNone).log()).masked_fill(unseen, -INFINITY);
}

}  // namespace kinfolk
