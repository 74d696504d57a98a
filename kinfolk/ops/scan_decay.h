// scan_decay: linear recurrences with a matrix state, H_t = G_t (.) H_{t-1} + k_t v_t^T, y_t = q_t H_t.
#pragma once
#include <string>

#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// S_t = S_{t-1} + k_t v_t^T,  o_t = scale q_t S_t; with `normalise` also z_t = z_{t-1} + k_t and
/// o_t = scale q_t S_t / (scale q_t . z_t + eps)   (Katharopoulos et al. 2020; k and q after their feature map).
struct DecayScan {
  Tensor q, k;        ///< [B, H, L, K]
  Tensor v;           ///< [B, H, L, V]
  Tensor state = {};  ///< [B, H, K, V]; undefined: zeros
  Tensor sum = {};    ///< z [B, H, K]; undefined: zeros; read with `normalise` only
  double scale = 1.0;
  bool normalise = false;
  double eps = 1e-6;
  ScanLanes lanes = {};
  bool plain = false;  ///< tests: never the fused path
};

struct DecayScanned : Scanned {
  Tensor sum = {};  ///< z [B, H, K] after the last token; undefined without `normalise`
};

/// All tokens at once in chunks: inside a chunk a masked product, between chunks the state. Any `chunk` gives the same;
/// chunk >= L is the parallel form. Differentiable in q, k, v, state, sum.
/// Without borders, in float32 on a CPU and with K and V multiples of 16 it runs in kernels/scan_decay, in chunks of
/// 16, 32, 48 or 64, and is differentiable once.
DecayScanned scan_decay(const DecayScan& scan, int64_t chunk);
/// Why a scan without borders of these head widths would not run there; empty: it does.
std::string why_not_fused_decay(int64_t keys, int64_t values, at::ScalarType type);
/// The same token by token, as it is written above.
DecayScanned scan_decay_steps(const DecayScan& scan);

}  // namespace kinfolk
