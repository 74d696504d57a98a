// Linear recurrences with decays, in chunks, float32, one head at a time with its tiles in cache.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// Sizes: n chunks of C tokens, K key and V value channels; C, K, V multiples of 16.
struct DecaySizes {
  int64_t chunks, size, keys, values;
  bool channels;  ///< a decay for each key channel, not one for a token
  float scale;    ///< of the outputs
};
bool scan_decay_fits(const DecaySizes& sizes);
/// Floats of scratch memory that either function needs (64-byte aligned).
int64_t scan_decay_scratch(const DecaySizes& sizes);

/// S_t = a_t (.) S_{t-1} + k_t v_t^T, o_t = scale q_t S_t: retention (Sun et al. 2023, arXiv 2307.08621) for one decay
/// a token, GLA (Yang et al. 2023, arXiv 2312.06635) for one a key channel. Only products of decays are formed, so that
/// any decay is safe, 0 included; results below 2^-126 are flushed to 0.
struct DecayForward {
  const float *q, *k;   ///< [n, C, K]
  const float* v;       ///< [n, C, V]
  const float* decay;   ///< [n, C], or [n, C, K] with channels; null: all are 1
  float* state;         ///< [K, V]: before the first token, then after the last
  float *out, *states;  ///< [n, C, V], and [n, K, V]: the state before each chunk; null: not kept
};
void scan_decay_forward(const DecaySizes& sizes, const DecayForward& head, float* scratch);

struct DecayBackward {
  const float *q, *k, *v, *decay, *states;  ///< as above
  const float* grad_out;                    ///< [n, C, V]
  float* grad_state;                        ///< [K, V]: of the last state, then of the first
  float *grad_q, *grad_k, *grad_v;
  float* grad_decay;  ///< null without decays
};
void scan_decay_backward(const DecaySizes& sizes, const DecayBackward& head, float* scratch);

}  // namespace kinfolk::kernels
