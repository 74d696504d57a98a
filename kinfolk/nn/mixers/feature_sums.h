// Attention over feature maps: sums over keys first, then what the queries read of them.
#pragma once
#include "kinfolk/ops/scan_decay.h"

namespace kinfolk {

/// o_t = sum_s w_ts v_s / sum_s w_ts with w_ts = phi(q_t).phi(k_s), over s <= t (causal, through scan_decay, with a
/// gate and a state) or over all. Invalid tokens are in neither sum; a row without a key is 0. Features that take both
/// signs can bring the divisor near zero: it is then moved away to +-eps.
struct FeatureSums {
  Tensor q, k;       ///< phi of them [B, H, L, F]
  Tensor v;          ///< [B, H, L, d]
  Tensor gate = {};  ///< log decay of both sums before each token [B, H, L]; undefined: none; causal only
  bool causal = true;
  bool positive = true;  ///< no feature is negative: the sums are kept apart, and eps is added to the divisor
  double eps = 1e-6;
  ScanLanes lanes = {};
  Tensor state =
      {};  ///< [B, H, F, d], or, where features take both signs, [B, H, F, d + 1]: the last column is their sum
  Tensor sum = {};     ///< [B, H, F] where they do not
  bool reuse = false;  ///< see DecayScan
};
struct FeatureRead {
  Tensor out;         ///< [B, H, L, d]
  Tensor state, sum;  ///< causal: after the last token
};
/// `chunk` 0: token by token. Refuses borders of documents inside where it is not causal.
FeatureRead read_features(const FeatureSums& sums, int64_t chunk);

}  // namespace kinfolk
