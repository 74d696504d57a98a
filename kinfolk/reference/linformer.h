// Linformer in loops (Wang et al. 2020), in double, with the article's symbols. For tests.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace kinfolk::reference {

/// What reduces the length of one head's rows: kind "linear" (matrix [k, n]), "mean", "max" (windows of `ratio`) or
/// "conv" (taps [out, in, ratio], bias [out]).
struct LengthReduction {
  std::string kind;
  at::Tensor matrix;
  int64_t ratio = 1;
  at::Tensor taps, bias;
};

/// x [n, d] -> [k, d]
inline at::Tensor reduce_length(const at::Tensor& x, const LengthReduction& r) {
  const int64_t n = x.size(0), d = x.size(1);
  if (r.kind == "linear") {
    at::Tensor out = at::zeros({r.matrix.size(0), d}, at::kDouble);
    for (int64_t s = 0; s < out.size(0); ++s)
      for (int64_t j = 0; j < n; ++j) out[s] += r.matrix[s][j] * x[j];
    return out;
  }
  const int64_t slots = (n + r.ratio - 1) / r.ratio;
  at::Tensor out = at::zeros({slots, d}, at::kDouble);
  for (int64_t s = 0; s < slots; ++s)
    for (int64_t c = 0; c < d; ++c) {
      double sum = 0, largest = -std::numeric_limits<double>::infinity();
      int64_t count = 0;
      for (int64_t t = 0; t < r.ratio && s * r.ratio + t < n; ++t, ++count) {
        const double value = x[s * r.ratio + t][c].item<double>();
        largest = std::max(largest, value);
        if (r.kind != "conv") sum += value;
        if (r.kind == "conv")
          for (int64_t in = 0; in < d; ++in) sum += (r.taps[c][in][t] * x[s * r.ratio + t][in]).item<double>();
      }
      out[s][c] = r.kind == "mean"  ? sum / static_cast<double>(count)
                  : r.kind == "max" ? largest
                                    : sum + r.bias[c].item<double>();
    }
  return out;
}

/// o = softmax(q (E k)^T / sqrt(d)) (F v) of one head: q [L, d], k, v [n, d].
inline at::Tensor linformer(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const LengthReduction& e,
                            const LengthReduction& f) {
  const at::Tensor keys = reduce_length(k, e), values = reduce_length(v, f);
  at::Tensor out = at::zeros({q.size(0), v.size(1)}, at::kDouble);
  for (int64_t i = 0; i < q.size(0); ++i) {
    double all = 0;
    for (int64_t s = 0; s < keys.size(0); ++s) {
      const double weight = std::exp(q[i].dot(keys[s]).item<double>() / std::sqrt(static_cast<double>(q.size(1))));
      all += weight;
      out[i] += values[s] * weight;
    }
    if (all > 0) out[i] /= all;
  }
  return out;
}

}  // namespace kinfolk::reference
