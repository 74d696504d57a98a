#include "kinfolk/nn/qk/xl_bias.h"

namespace kinfolk {

XlBias::XlBias(const Options&, const Context& context) {
  u = register_parameter("u", draw_parameter(context, {context.heads.count, context.heads.width}, 0.02));
}

std::vector<QueryBand> XlBias::queries(const QueryBand& band, const Tensor&) {
  QueryBand out = band;
  out.q = band.q + u.unsqueeze(1).to(band.q.scalar_type());  // [B, H, L, d]
  return {out};
}

}  // namespace kinfolk
