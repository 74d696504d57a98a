#include "kinfolk/nn/feature/rectified.h"

namespace kinfolk {

Tensor rectified_features(const Tensor& x, const Tensor& directions, double eps) {
  return at::relu(at::matmul(x, directions.to(x.scalar_type()).transpose(-2, -1))) + eps;
}

}  // namespace kinfolk
