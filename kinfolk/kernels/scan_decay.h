// The sum of outer products in chunks, float32, one head at a time with its tiles in cache.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// Sizes: n chunks of C tokens, K key and V value channels; C, K, V multiples of 16.
struct DecaySizes {
  int64_t chunks, size, keys, values;
};
bool scan_decay_fits(const DecaySizes& sizes);
/// Floats of scratch memory that either function needs (64-byte aligned).
int64_t scan_decay_scratch(const DecaySizes& sizes);

/// O = Q S + lower(Q K^T) V, S <- S + K^T V, chunk after chunk (Katharopoulos et al. 2020, arXiv 2006.16236).
struct DecayForward {
  const float *q, *k;   ///< [n, C, K]
  const float* v;       ///< [n, C, V]
  float* state;         ///< [K, V]: before the first token, then after the last
  float *out, *states;  ///< [n, C, V], and [n, K, V]: the state before each chunk
};
void scan_decay_forward(const DecaySizes& sizes, const DecayForward& head, float* scratch);

struct DecayBackward {
  const float *q, *k, *v, *states;  ///< as above
  const float* grad_out;            ///< [n, C, V]
  float* grad_state;                ///< [K, V]: of the last state, then of the first
  float *grad_q, *grad_k, *grad_v;
};
void scan_decay_backward(const DecaySizes& sizes, const DecayBackward& head, float* scratch);

}  // namespace kinfolk::kernels
