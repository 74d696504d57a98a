// The ways that scan_decay takes: kernels, by chunks or by tokens, and torch operators.
#pragma once
#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// Everything in one type, invalid tokens without effect, borders as decays of 0.
struct DecayCall {
  Tensor q, k;   ///< [B, H, L, K]
  Tensor v;      ///< [B, H, L, V]
  Tensor state;  ///< [B, H, K, V]
  Tensor key;    ///< decays [B, H, L, 1 or K]; undefined: 1
  Tensor value;  ///< decays [B, H, L, V]; undefined: 1
  double scale;  ///< of the outputs
};

/// Output [B, H, L, V] and last state [B, H, K, V]; L > 0.
Scanned decay_chunks_plain(const DecayCall& call, int64_t chunk);
/// The same in float32 on a CPU, without decays of value channels.
Scanned decay_chunks_fused(const DecayCall& call, int64_t chunk);
/// The same in float32 on a CPU, token by token in a kernel.
Scanned decay_steps_fused(const DecayCall& call);

/// One step, or a few, where nobody wants a gradient: with the read before the step, the bonus u [H, K] and the sum
/// z [B, H, K] (undefined: none). `state` and `sum` are written to.
Tensor decay_steps_onto(const DecayCall& call, const Tensor& sum, bool before, const Tensor& bonus, double eps);

}  // namespace kinfolk
