#include "kinfolk/nn/qk/qk_bias.h"

namespace kinfolk {

QkBias::QkBias(const Options&, const Context& context) {
  a = register_parameter("a", draw_parameter(context, {context.heads.count, context.heads.width}, 0.02));
  b = register_parameter("b", draw_parameter(context, {context.heads.groups, context.heads.width}, 0.02));
}

std::vector<QueryBand> QkBias::queries(const QueryBand& band, const Tensor&) {
  QueryBand out = band;
  out.q = band.q + a.unsqueeze(1).to(band.q.scalar_type());  // [B, H, L, d]
  return {out};
}

std::vector<KeyBand> QkBias::keys(const KeyBand& band, const Tensor&) {
  return {{band.k + b.unsqueeze(1).to(band.k.scalar_type())}};  // [B, G, S, d]
}

}  // namespace kinfolk
