// The selective scan in torch operators, for every type and device.
#pragma once
#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// h_t = goes_on_t exp(d_t A) h_{t-1} + d_t phi(d_t A) B_t x_t, y_t = C_t . h_t; phi(w) = (e^w - 1) / w with zoh,
/// else 1.
struct SelectiveCore {
  Tensor step, x;       ///< d, x [B, L, E]
  Tensor a;             ///< [E, N]
  Tensor b, c;          ///< [B, L, N]
  Tensor state;         ///< [B, E, N]
  Tensor goes_on = {};  ///< [B, L], 0 where a document starts, else 1; undefined: 1
  bool zoh = false;
};

/// y [B, L, E] and the last state, with B C E N entries in memory at a time for chunks of C tokens.
Scanned scan_selective_chunks(const SelectiveCore& core, int64_t chunk);
/// (e^w - 1) / w, 1 at w = 0; differentiable there too.
Tensor selective_quotient(const Tensor& w);

}  // namespace kinfolk
