// Positive random features of the softmax kernel (FAVOR+).
#pragma once
#include <ATen/core/Tensor.h>

namespace kinfolk {
using at::Tensor;

/// phi(x) = M^(-1/2) (exp(w.x' - |x'|^2/2 - c) + eps), x' = x d^(-1/4), for the M rows w: phi(q).phi(k) is exp(q.k /
/// sqrt(d)) e^(-2c) in the mean where eps is 0 (Choromanski et al. 2021).
/// x [B, H, L, d], directions [H, M, d] -> [B, H, L, M]
struct PositiveFeatures {
  Tensor directions;  ///< [H, M, d]
  double eps = 0;

  /// c = the largest w.q' of the query itself. `constant`, as published: it has no gradient, which eps makes a
  /// difference to.
  Tensor queries(const Tensor& q, bool constant) const;
  /// c the same for all keys, whatever they are: w.x' - |x'|^2/2 is at most |w|^2/2, so that no sum overflows.
  Tensor keys(const Tensor& k) const;
  /// c = the largest w.k' of all keys of the head, without gradient, as published: it needs the whole sequence. valid
  /// bool [B, L] or undefined.
  Tensor keys_of_all(const Tensor& k, const Tensor& valid) const;
};

}  // namespace kinfolk
