// short_conv: a causal convolution of a few taps along the tokens of each channel, with the last inputs as its state.
#pragma once
#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// y_t = act(sum_{j < W} weight[:, W-1-j] x_{t-j} + bias): the last tap is the current token, and "t - j" counts valid
/// tokens of the same document.
struct ShortConv {
  Tensor x;           ///< [B, L, D]
  Tensor weight;      ///< [D, W]
  Tensor bias = {};   ///< [D]; undefined: none
  Tensor state = {};  ///< [B, D, W-1] the last inputs, oldest first; undefined: zeros
  bool silu = false;  ///< the activation; otherwise none
  ScanLanes lanes = {};
  bool plain = false;  ///< tests: never the fused path
  bool reuse = false;  ///< nobody else reads `state`: a single token that wants no gradient is written into it
};

struct ShortConved {
  Tensor out;         ///< [B, L, D], in the type of x
  Tensor state = {};  ///< [B, D, W-1], in float32 or wider
};

/// Differentiable once in x, weight, bias, state. In float32 on a CPU, without gaps or borders, it runs in
/// kernels/short_conv.
ShortConved short_conv(const ShortConv& conv);

}  // namespace kinfolk
