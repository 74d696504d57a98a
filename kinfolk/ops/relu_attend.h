// Attention without softmax: squared ReLU of the scores.
#pragma once
#include "kinfolk/ops/attend.h"

namespace kinfolk {

struct ReluRead {
  Tensor out;    ///< [B, H, L, e]
  Tensor count;  ///< [B, 1, L] visible keys of each query, in the type of the scores
};

/// out_i = sum_j relu(scale q_i . k_j)^2 v_j over the keys that i sees (Hua et al. 2022); nothing is normalised.
/// q [B, H, L, s], k [B, H, S, s], v [B, H, S, e] (keys.k, keys.v); one pattern for all heads, without facts to fill
/// in. In tiles, which backward makes again, so memory is linear in L; half types are computed in float.
ReluRead relu_attend(const Tensor& q, const Tensor& q_at, const Tensor& q_document, const Keys& keys,
                     const std::shared_ptr<const Pattern>& pattern, double scale);

/// How many keys each query sees.  [B, 1, L], double
Tensor visible_keys(const Tensor& q_at, const Tensor& q_document, const Keys& keys,
                    const std::shared_ptr<const Pattern>& pattern);

}  // namespace kinfolk
