#include "kinfolk/nn/feature/positive.h"

#include <cmath>
#include <limits>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr double kLargest = 40;  // e^40 a token leaves a float32 room for sums over any text

Tensor scaled(const Tensor& x) { return x * std::pow(static_cast<double>(x.size(-1)), -0.25); }
Tensor along(const Tensor& x, const Tensor& directions) {
  return at::matmul(x, directions.to(x.scalar_type()).transpose(-2, -1));  // [B, H, L, M]
}
Tensor raised(const Tensor& projected, const Tensor& x, const Tensor& c, double eps) {
  // All that is the same for a row is put together first: each pass over the features costs as much as their product.
  const auto features = static_cast<double>(projected.size(-1));
  const Tensor e = at::exp(projected - (x.square().sum(-1, true) / 2 + c + std::log(features) / 2));
  return eps > 0 ? e + eps / std::sqrt(features) : e;
}

}  // namespace

Tensor PositiveFeatures::queries(const Tensor& q, bool constant) const {
  const Tensor x = scaled(q), projected = along(x, directions);
  return raised(projected, x, (constant ? projected.detach() : projected).amax(-1, true), eps);
}

Tensor PositiveFeatures::keys(const Tensor& k) const {
  const Tensor x = scaled(k);
  const Tensor c = (directions.square().sum(-1).amax(-1) / 2 - kLargest).clamp_min(0).to(x.scalar_type());  // [H]
  return raised(along(x, directions), x, c.view({-1, 1, 1}), eps);
}

Tensor PositiveFeatures::keys_of_all(const Tensor& k, const Tensor& valid) const {
  const Tensor x = scaled(k), projected = along(x, directions);
  if (x.size(2) == 0) return projected;
  Tensor seen = projected.detach();
  if (valid.defined()) {
    seen = seen.masked_fill(valid.logical_not().unsqueeze(1).unsqueeze(-1), -std::numeric_limits<double>::infinity());
  }
  Tensor c = seen.amax({2, 3}, true);  // [B, H, 1, 1]
  c = at::where(at::isfinite(c), c, at::zeros_like(c));
  return raised(projected, x, c, eps);
}

}  // namespace kinfolk
