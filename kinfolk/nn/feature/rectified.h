// Rectified random features: a kernel of its own, not that of softmax.
#pragma once
#include <ATen/core/Tensor.h>

namespace kinfolk {
using at::Tensor;

/// relu(w.x) + eps for the rows w of directions [H, M, d] (Choromanski et al. 2021, generalised attention).
/// x [B, H, L, d] -> [B, H, L, M]
Tensor rectified_features(const Tensor& x, const Tensor& directions, double eps);

}  // namespace kinfolk
