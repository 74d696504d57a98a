// scan_elementwise: h_t = a_t h_{t-1} + x_t, every channel on its own.
#pragma once
#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// The recurrence of HGRN (Qin et al. 2023, arXiv 2311.04823) and RG-LRU (De et al. 2024, arXiv 2402.19427). Any decay
/// is fine, 0 and signs included: nothing is divided by one.
struct ElementScan {
  Tensor x;           ///< [B, L, E]
  Tensor decay;       ///< [B, L, E]
  Tensor state = {};  ///< [B, E]; undefined: zeros
  bool log = false;   ///< decay is a logarithm, -inf for a decay of 0
  ScanLanes lanes = {};
  bool plain = false;  ///< tests: never the fused path
  bool reuse = false;  ///< nobody else reads `state`: where nothing wants a gradient it is written over
};

struct ElementScanned {
  Tensor out;    ///< h [B, L, E], in the type of x
  Tensor state;  ///< [B, E] after the last token, in float32 or wider
};

/// In float32 on a CPU in kernels/scan_elementwise, differentiable once; elsewhere scan_decay's torch operators.
ElementScanned scan_elementwise(const ElementScan& scan);

}  // namespace kinfolk
