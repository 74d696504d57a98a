// short_conv: a causal convolution of a few taps along the tokens of each channel.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// L tokens of one lane, E channels, W taps. Any number of each.
struct ShortConvSizes {
  int64_t tokens, channels, taps;
  bool silu;
};

/// pre_t = bias + sum_{j < W} weight[W-1-j] x_{t-j}, out_t = silu(pre_t) or pre_t.
struct ShortConvForward {
  const float* x;  ///< [L, E], rows `row` floats apart
  int64_t row;
  const float* before;  ///< [W-1, E]: the inputs before the first, oldest first
  const float* weight;  ///< [W, E]: the last is that of the current token
  const float* bias;    ///< [E]
  float* out;           ///< [L, E]
};
void short_conv_forward(const ShortConvSizes& sizes, const ShortConvForward& lane, int64_t from, int64_t until);

/// One token of one lane, in the layout of a model: weight [E, W], state [E, W-1], which moves on by it.
struct ShortConvStep {
  int64_t channels, taps;
  bool silu;
  const float *x, *weight;  ///< [E], [E, W]
  const float* bias;        ///< [E]; null: none
  float *state, *out;       ///< [E, W-1], [E]
};
void short_conv_step(const ShortConvStep& step);

struct ShortConvBackward {
  ShortConvForward given;          ///< as it was run; out is not read
  const float* grad_out;           ///< [L, E]
  float *grad_x, *grad_before;     ///< [L, E], [W-1, E]
  float *grad_weight, *grad_bias;  ///< [W, E], [E]: added to
};
/// Channels [from, until); scratch: W (until - from) floats.
void short_conv_backward(const ShortConvSizes& sizes, const ShortConvBackward& lane, int64_t from, int64_t until,
                         float* scratch);

}  // namespace kinfolk::kernels
