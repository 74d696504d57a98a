#include "kinfolk/nn/qk/log_n.h"

namespace kinfolk {

LogN::LogN(const Options& options, const Context& context) : options_(options) {
  options_.trained = trained_length(options.trained, context);
  if (options_.trained < 2) fail("[", context.path, ".trained] expected at least 2; found ", options_.trained);
}

std::vector<QueryBand> LogN::queries(const QueryBand& band, const Tensor& at) {
  Tensor factor = (at.to(at::kDouble) + 1).clamp_min(1).log() / std::log(static_cast<double>(options_.trained));
  if (options_.clip) factor = factor.clamp_min(1);
  QueryBand out = band;
  out.q = band.q * factor.unsqueeze(1).unsqueeze(-1).to(band.q.scalar_type());  // [B, H, L, d]
  return {out};
}

}  // namespace kinfolk
