// scan_selective: a diagonal recurrence whose step size, input and output weights are chosen by each token.
#pragma once
#include <string>

#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// d_t = softplus(delta_t + bias) or delta_t + bias; h_t = exp(d_t A) h_{t-1} + u_t with u_t = d_t B_t x_t (euler), or
/// u_t = (exp(d_t A) - 1) / A B_t x_t (zoh, d_t B_t x_t where A = 0); y_t = C_t . h_t + skip x_t, times silu(z_t) if z
/// is given, each channel on its own (Gu and Dao 2023, arXiv 2312.00752; released kernels use euler).
struct SelectiveScan {
  Tensor x, delta;    ///< [B, L, E]
  Tensor a;           ///< A [E, N], not above 0
  Tensor b, c;        ///< [B, L, N], of all channels
  Tensor skip = {};   ///< [E]; undefined: zeros
  Tensor z = {};      ///< [B, L, E]; undefined: no gate
  Tensor bias = {};   ///< [E] of delta; undefined: zeros
  Tensor state = {};  ///< h [B, E, N]; undefined: zeros
  bool softplus = true;
  bool zoh = false;
  ScanLanes lanes = {};
  bool plain = false;  ///< tests: never the fused path
  bool reuse = false;  ///< nobody else reads `state`: where nothing wants a gradient it may be written over
};

struct SelectiveScanned {
  Tensor out;         ///< [B, L, E], in the type of x
  Tensor state = {};  ///< [B, E, N] after the last token, in float32 or wider
};

/// All tokens, keeping one state every few tokens for the backward pass, which computes the others again; no tensor of
/// B L E N entries. Any `chunk` gives the same. Differentiable once in every tensor. In float32 on a CPU it runs in
/// kernels/scan_selective, elsewhere in torch operators over chunks.
SelectiveScanned scan_selective(const SelectiveScan& scan, int64_t chunk);
/// The same token by token, as it is written above.
SelectiveScanned scan_selective_steps(const SelectiveScan& scan);

}  // namespace kinfolk
