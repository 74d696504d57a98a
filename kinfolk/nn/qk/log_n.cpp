#include "kinfolk/nn/qk/log_n.h"

namespace kinfolk {

std::vector<QueryBand> LogN::queries(const QueryBand& band, const Tensor& at) {
  Tensor factor = (at.to(at::kDouble) + 1).clamp_min(1).log() / std::log(static_cast<double>(options_.trained));
  if (options_.clip) factor = factor.clamp_min(1);
  QueryBand out = band;
  out.q = band.q * factor.unsqueeze(1).unsqueeze(-1).to(band.q.scalar_type());  // [B, H, L, d]
  return {out};
}

}  // namespace kinfolk
