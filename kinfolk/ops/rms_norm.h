// Root-mean-square normalisation over the last axis.
#pragma once
#include <ATen/core/Tensor.h>

namespace kinfolk {
using at::Tensor;

/// x / sqrt(mean x^2 + eps) * weight over the last axis (Zhang and Sennrich 2019); weight [width] or undefined. Keeps
/// x and a number a row for backward, where a composition of torch operators keeps x / sqrt(...) besides; backward goes
/// by blocks of rows, so that it holds no more than its result. First derivatives.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);

}  // namespace kinfolk
