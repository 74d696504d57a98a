// scan_decay: linear recurrences with a matrix state, H_t = G_t (.) H_{t-1} + k_t v_t^T, y_t = q_t H_t.
#pragma once
#include <string>

#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// G_t[a, b] = key_t[a] value_t[b]: what the state is multiplied by before a token is written. Undefined parts are 1.
/// Zeros, ones and any sign are fine: nothing is divided by a decay and no logarithm is taken.
struct DecayGate {
  Tensor key = {};    ///< [H]: for each head; [B, H, L]: for each token too; [B, H, L, K]: for each key channel too
  Tensor value = {};  ///< [B, H, L, V]: for each token, head and value channel
  bool log = false;   ///< both are logarithms, -inf for a decay of 0
};

/// S_t = G_t (.) S_{t-1} + k_t v_t^T,  o_t = scale q_t S_t. With `before` the read comes first:
/// o_t = scale q_t (S_{t-1} + diag(bonus) k_t v_t^T)   (RWKV-6; Peng et al. 2024, arXiv 2404.05892).
/// With `normalise` also z_t = G_t z_{t-1} + k_t and o_t is divided by scale q_t . z_t + eps (Katharopoulos et al.
/// 2020; k and q after their feature map); then the gate has no value part.
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
  DecayGate gate = {};
  bool before = false;
  Tensor bonus = {};   ///< u [H, K], with `before`; undefined: zeros
  bool reuse = false;  ///< nobody else reads `state` and `sum`: scan_decay_steps may write the new ones into them
};

struct DecayScanned : Scanned {
  Tensor sum = {};  ///< z [B, H, K] after the last token; undefined without `normalise`
};

/// All tokens at once in chunks: inside a chunk a masked product, between chunks the state. Any `chunk` gives the same;
/// chunk >= L is the parallel form (with decays for each channel chunks hold at most 16 tokens). Differentiable in
/// q, k, v, state, sum, bonus and the gate. In float32 on a CPU it runs in kernels/scan_decay, in chunks of 16, 32, 48
/// or 64, with a value gate in kernels/scan_decay_steps, and is differentiable once.
DecayScanned scan_decay(const DecayScan& scan, int64_t chunk);
/// Why a scan would not run there; empty: it does.
std::string why_not_fused_decay(int64_t keys, int64_t values, at::ScalarType type);
/// The same token by token, as it is written above: in torch operators, or, in float32 on a CPU where nothing wants a
/// gradient, in kernels/scan_decay_steps.
DecayScanned scan_decay_steps(const DecayScan& scan);

}  // namespace kinfolk
