#include "kinfolk/nn/qk/key_norm.h"

namespace kinfolk {

KeyNorm::KeyNorm(const Options& options, const Context& context) : options_(options) {
  const Heads& heads = context.heads;
  if (std::abs(heads.scale * std::sqrt(static_cast<double>(heads.width)) - 1) > 1e-9) {
    fail("[", context.path, "] expected the scale in key_norm's own option; found one in the branch, ", heads.scale);
  }
}

std::vector<QueryBand> KeyNorm::queries(const QueryBand& band, const Tensor&) {
  QueryBand out = band;
  out.scale = options_.scale;
  return {out};
}

std::vector<KeyBand> KeyNorm::keys(const KeyBand& band, const Tensor&) {
  const at::ScalarType exact = band.k.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor k = band.k.to(exact);
  const Tensor norm = at::linalg_vector_norm(k, 2, {-1}, /*keepdim=*/true);  // [B, G, S, 1]
  return {{(k / norm.clamp_min(1e-20)).to(band.k.scalar_type())}};
}

}  // namespace kinfolk
