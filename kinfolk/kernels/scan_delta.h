// The delta rule in chunks, float32, one head at a time with its tiles in cache.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// Sizes: n chunks of C tokens, K key and V value channels; C, K, V multiples of 16.
struct DeltaSizes {
  int64_t chunks, size, keys, values;
};
bool scan_delta_fits(const DeltaSizes& sizes);
/// Floats of scratch memory that either function needs (64-byte aligned).
int64_t scan_delta_scratch(const DeltaSizes& sizes);

/// M = strict_lower(diag(beta) K K^T), U = (I + M)^-1 diag(beta) (V - K S), O = Q S + lower(Q K^T) U, S <- S + K^T U
/// (Yang et al. 2024, arXiv 2406.06484), chunk after chunk. With a decay, f_ij = prod of exp(log_decay_u) over
/// j < u <= i multiplies K K^T and Q K^T, and the products up to a token or from it on the rows that meet S
/// (Yang et al. 2024, arXiv 2412.06464): products of numbers in [0, 1], so nothing overflows.
struct DeltaForward {
  const float *q, *k;       ///< [n, C, K]
  const float* v;           ///< [n, C, V]
  const float* beta;        ///< [n, C]
  const float* log_decay;   ///< [n, C], not above 0; null: none
  float* state;             ///< [K, V]: before the first token, then after the last
  float *out, *u, *states;  ///< [n, C, V], [n, C, V], and [n, K, V]: the state before each chunk
};
void scan_delta_forward(const DeltaSizes& sizes, const DeltaForward& head, float* scratch);

struct DeltaBackward {
  const float *q, *k, *v, *beta, *log_decay, *u, *states;        ///< as above
  const float* grad_out;                                         ///< [n, C, V]
  float* grad_state;                                             ///< [K, V]: of the last state, then of the first
  float *grad_q, *grad_k, *grad_v, *grad_beta, *grad_log_decay;  ///< the last may be null without a decay
};
void scan_delta_backward(const DeltaSizes& sizes, const DeltaBackward& head, float* scratch);

}  // namespace kinfolk::kernels
