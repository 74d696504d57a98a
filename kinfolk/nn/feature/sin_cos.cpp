#include "kinfolk/nn/feature/sin_cos.h"

#include <cmath>

namespace kinfolk {

Tensor sin_cos_features(const Tensor& x, const Tensor& directions) {
  const Tensor angle = at::matmul(x, directions.to(x.scalar_type()).transpose(-2, -1));  // [B, H, L, M]
  return at::cat({at::sin(angle), at::cos(angle)}, -1) / std::sqrt(static_cast<double>(directions.size(1)));
}

}  // namespace kinfolk
