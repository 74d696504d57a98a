// One token of the delta rule over one head, float32.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// S <- a S + k (beta (.) (v - a S^T k))^T, o = scale q S. K keys and V values, any numbers.
struct DeltaStep {
  int64_t keys, values;
  const float *q, *k, *v;  ///< [K], [K], [V]
  const float* beta;
  bool betas;   ///< one for each value; else one
  float decay;  ///< a
  float scale;
  float* state;  ///< [K, V]
  float* out;    ///< [V]
};
void scan_delta_step(const DeltaStep& step);

}  // namespace kinfolk::kernels
