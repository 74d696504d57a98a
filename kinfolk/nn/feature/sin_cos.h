// Trigonometric random features (Rahimi and Recht 2007).
#pragma once
#include <ATen/core/Tensor.h>

namespace kinfolk {
using at::Tensor;

/// [sin(w.x), cos(w.x)] / sqrt(M) for the M rows w of directions [H, M, d]: phi(x).phi(y) is exp(-|x - y|^2/2) in the
/// mean.  x [B, H, L, d] -> [B, H, L, 2 M]
Tensor sin_cos_features(const Tensor& x, const Tensor& directions);

}  // namespace kinfolk
