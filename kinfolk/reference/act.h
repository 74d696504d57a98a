// Adaptive computation time in loops (Graves 2016; Dehghani et al. 2019), in double.
#pragma once
#include <ATen/ATen.h>

#include <cmath>

namespace kinfolk::reference {

struct ActResult {
  at::Tensor y;          ///< [P, D]
  at::Tensor weights;    ///< [S, P]
  at::Tensor remainder;  ///< [P]
  at::Tensor updates;    ///< int64 [P]
  at::Tensor ponder;     ///< [P]
};

/// states [S, P, D], logits [S, P], initial [P, D] (only the interpolating form reads it); all double.
inline ActResult act(const at::Tensor& states, const at::Tensor& logits, double eps, bool strict, bool graves,
                     const at::Tensor& initial = {}) {
  const int64_t S = states.size(0), P = states.size(1), D = states.size(2);
  ActResult r{at::zeros({P, D}, at::kDouble), at::zeros({S, P}, at::kDouble), at::zeros({P}, at::kDouble),
              at::zeros({P}, at::kLong), at::zeros({P}, at::kDouble)};
  const auto s = states.accessor<double, 3>();
  const auto logit = logits.accessor<double, 2>();
  auto y = r.y.accessor<double, 2>();
  auto w = r.weights.accessor<double, 2>();
  for (int64_t i = 0; i < P; ++i) {
    int64_t N = S;
    bool crossed = false;
    double sum = 0;
    for (int64_t n = 1; n <= S && !crossed; ++n) {
      sum += 1 / (1 + std::exp(-logit[n - 1][i]));
      crossed = strict ? sum > 1 - eps : sum >= 1 - eps;
      if (crossed) N = n;
    }
    double before = 0;  // p_1 + .. + p_(N-1)
    for (int64_t n = 1; n <= N; ++n) {
      const double p = 1 / (1 + std::exp(-logit[n - 1][i]));
      w[n - 1][i] = n < N ? p : (crossed || graves) ? 1 - before : p;
      if (n < N) before += p;
    }
    const double R = crossed || graves ? 1 - before : 0;
    for (int64_t c = 0; c < D; ++c) {
      double value = graves ? 0 : initial[i][c].item<double>();
      for (int64_t n = 0; n < S; ++n)
        value = graves ? value + w[n][i] * s[n][i][c] : w[n][i] * s[n][i][c] + (1 - w[n][i]) * value;
      y[i][c] = value;
    }
    r.remainder[i] = R;
    r.updates[i] = N;
    r.ponder[i] = static_cast<double>(N) + R;
  }
  return r;
}

}  // namespace kinfolk::reference
