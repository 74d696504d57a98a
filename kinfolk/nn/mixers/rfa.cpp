#include "kinfolk/nn/mixers/rfa.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/feature/sin_cos.h"

namespace kinfolk {

FeatureAttention::Shape Rfa::shape(const Options& o, const Context& context) {
  if (o.gated && !o.causal) {
    refuse("[", context.path,
           ".gated] expected false in a member that is not causal: a gate forgets what came before; "
           "found true");
  }
  Shape s;
  s.heads = o.heads;
  s.features = o.features, s.columns = 2 * o.features;
  s.causal = o.causal, s.positive = false, s.orthogonal = o.orthogonal;
  s.eps = o.eps, s.deviation = o.deviation;
  s.redraw = o.redraw, s.chunk = o.chunk, s.bias = o.bias;
  return s;
}

Rfa::Rfa(const Options& options, const Context& context) : FeatureAttention(shape(options, context), context) {
  if (!options.gated) return;
  gate_ = register_module("gate", std::make_shared<Linear>(context, context.size.width, heads()));
  if (gate_->bias.is_meta()) return;
  const at::NoGradGuard guard;
  gate_->bias.fill_(3);  // g near 0.95: about twenty tokens at the start
}

double Rfa::flops(int64_t length, int64_t from) const {
  return FeatureAttention::flops(length, from) + (gate_ ? gate_->flops(length) : 0);
}

FeatureAttention::Features Rfa::features(const Tensor& q, const Tensor& k, const Tensor& x, const Pass&) {
  const auto unit = [](const Tensor& t) { return t / t.square().sum(-1, true).clamp_min(1e-24).sqrt(); };
  Features f{sin_cos_features(unit(q), directions()), sin_cos_features(unit(k), directions())};
  if (!gate_) return f;
  const Tensor logit = gate_->forward(x).to(gate_->weight.scalar_type()).transpose(1, 2);  // [B, H, L]
  f.gate = at::log_sigmoid(logit);
  f.k = f.k * at::sigmoid(-logit).to(f.k.scalar_type()).unsqueeze(-1);
  return f;
}

}  // namespace kinfolk
