// scan_delta: the delta rule, which writes what the state does not say yet.
#pragma once
#include <string>

#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// S_t = S_{t-1} + beta_t k_t (v_t - k_t^T S_{t-1})^T,  o_t = scale q_t S_t   (Schlag et al. 2021); with a decay,
/// exp(log_decay_t) S_{t-1} stands for S_{t-1} (Yang et al. 2024, arXiv 2412.06464).
/// With |k| = 1: beta = 0 keeps, 1 replaces, 2 reflects. Without unit keys |1 - beta |k|^2| may pass 1, and the state
/// then grows without bound.
struct DeltaScan {
  Tensor q, k;        ///< [B, H, L, K]
  Tensor v;           ///< [B, H, L, V]
  Tensor beta;        ///< [B, H, L], or [B, H, L, V]: one for each value channel (V times the work)
  Tensor state = {};  ///< [B, H, K, V]; undefined: zeros
  double scale = 1.0;
  ScanLanes lanes = {};
  Tensor log_decay = {};  ///< [B, H, L], not above 0 (-inf forgets all); undefined: none
  bool plain = false;     ///< tests: never the fused path
  bool reuse = false;     ///< nobody else reads `state`: scan_delta_steps may write the new one into it
};

/// All tokens at once in chunks of C by the WY form (Yang et al. 2024): M = strict_lower(diag(beta) K K^T),
/// U = (I + M)^-1 diag(beta) (V - K S), O = Q S + lower(Q K^T) U, S <- S + K^T U. All but S runs batched over the
/// chunks. Any `chunk` gives the same. Differentiable once in q, k, v, beta, state, log_decay.
/// Without borders, in float32 on a CPU and with K and V multiples of 16 it runs in kernels/scan_delta, in chunks of
/// 16, 32, 48 or 64.
Scanned scan_delta(const DeltaScan& scan, int64_t chunk);
/// Why a scan without borders of these head widths would not run there; empty: it does.
std::string why_not_fused_delta(int64_t keys, int64_t values, at::ScalarType type);
/// The same token by token, as it is written above: in torch operators, or, in float32 on a CPU where nothing wants a
/// gradient, in kernels/scan_delta_step.
Scanned scan_delta_steps(const DeltaScan& scan);

}  // namespace kinfolk
