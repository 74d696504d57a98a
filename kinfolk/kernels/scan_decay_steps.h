// The recurrence with decays token by token, float32, one head at a time: decays of value channels too, any number of
// tokens, and a single one without detours.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// Row t is at data + t step; null: there are none.
template <class Float>
struct Rows {
  Float* data;
  int64_t step;
};

/// L tokens, K key and V value channels.
struct DecayStepSizes {
  int64_t tokens, keys, values;
  int64_t decays;       ///< of keys, for each token: 0 (all are 1), 1 or K
  float scale;          ///< of the outputs
  int64_t every;        ///< tokens from one kept state to the next
  bool before = false;  ///< reads come before the step: o_t = scale (q_t S_{t-1} + (q_t . u k_t) v_t)
  float eps = 0;        ///< of the divisor, with a sum
};
/// Floats of scratch memory that the backward needs.
int64_t scan_decay_steps_scratch(const DecayStepSizes& sizes);

/// S_t = (a_t e_t^T) (.) S_{t-1} + k_t v_t^T, o_t = scale q_t S_t. Any decays, 0 and signs included: they are only
/// multiplied, one token at a time. Results below 2^-126 are flushed to 0.
struct DecayStepForward {
  Rows<const float> q, k, v;     ///< [L, K], [L, K], [L, V]
  Rows<const float> key, value;  ///< a [L, decays], e [L, V]; null: 1
  float* state;                  ///< [K, V]: before the first token, then after the last
  Rows<float> out;               ///< [L, V]
  float* states;                 ///< [ceil(L / every), K, V]: before each `every` tokens; null: not kept
  const float* bonus = nullptr;  ///< u [K] of reads before the step; null: 0
  float* sum = nullptr;          ///< [K]: z_t = a_t z_{t-1} + k_t, o_t is divided by scale q_t . z_t + eps; null: not
};
void scan_decay_steps_forward(const DecayStepSizes& sizes, const DecayStepForward& head);

/// Sizes with `decays` 0 or K and V a multiple of 16, reads after the step, no sum.
struct DecayStepBackward {
  Rows<const float> q, k, v, key, value;  ///< as above
  const float* states;
  Rows<const float> grad_out;                                ///< [L, V]
  float* grad_state;                                         ///< [K, V]: of the last state, then of the first
  Rows<float> grad_q, grad_k, grad_v, grad_key, grad_value;  ///< grad_key null without decays of keys, _value likewise
};
void scan_decay_steps_backward(const DecayStepSizes& sizes, const DecayStepBackward& head, float* scratch);

}  // namespace kinfolk::kernels
