// h_t = a_t h_(t-1) + x_t, every channel on its own, float32, as fast as memory brings a and x.
#pragma once
#include "kinfolk/kernels/scan_decay_steps.h"

namespace kinfolk::kernels {

struct ElementForward {
  int64_t tokens;
  Rows<const float> x, decay;  ///< [L, E]
  float* state;                ///< [E]: before the first token, then after the last
  Rows<float> out;             ///< [L, E]: h
};
/// Channels [from, until).
void scan_elementwise_forward(const ElementForward& lane, int64_t from, int64_t until);

struct ElementBackward {
  int64_t tokens;
  Rows<const float> decay, out, grad_out;
  const float* state;  ///< [E]: before the first token
  float* grad_state;   ///< [E]: of the last state, then of the first
  Rows<float> grad_x, grad_decay;
};
void scan_elementwise_backward(const ElementBackward& lane, int64_t from, int64_t until);

}  // namespace kinfolk::kernels
