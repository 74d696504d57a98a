// Attention over quantised keys by its definition, all pairs in loops (Lingle 2023), in double.
#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace kinfolk::reference {

/// z_j = argmin_s |k_j - C_s|^2, the first of equal ones. k [H, L, d], C [H, S, d] -> int64 [H, L].
inline at::Tensor vq_codes(const at::Tensor& k, const at::Tensor& codebook) {
  const int64_t H = k.size(0), L = k.size(1), d = k.size(2), S = codebook.size(1);
  at::Tensor code = at::zeros({H, L}, at::kLong);
  const auto K = k.accessor<double, 3>(), C = codebook.accessor<double, 3>();
  auto z = code.accessor<int64_t, 2>();
  for (int64_t h = 0; h < H; ++h)
    for (int64_t j = 0; j < L; ++j) {
      double least = INFINITY;
      for (int64_t s = 0; s < S; ++s) {
        double sum = 0;
        for (int64_t c = 0; c < d; ++c) sum += (K[h][j][c] - C[h][s][c]) * (K[h][j][c] - C[h][s][c]);
        if (sum < least) least = sum, z[h][j] = s;
      }
    }
  return code;
}

/// One lane: o_i = sum_{j <= i} softmax_j(q_i . C_{z_j} + b_h(i - j)) v_j, b only where block(i) - block(j) <= 1 and
/// both of one document. q, v [H, L, d] (a scale belongs into q), bias [H, 2 block] or undefined.
inline at::Tensor vq_attention(const at::Tensor& q, const at::Tensor& codebook, const at::Tensor& code,
                               const at::Tensor& v, const at::Tensor& bias, int64_t block,
                               const std::vector<int64_t>& document) {
  const int64_t H = q.size(0), L = q.size(1), d = q.size(2);
  at::Tensor out = at::zeros_like(v);
  const auto Q = q.accessor<double, 3>(), C = codebook.accessor<double, 3>(), V = v.accessor<double, 3>();
  const auto z = code.accessor<int64_t, 2>();
  auto O = out.accessor<double, 3>();
  for (int64_t h = 0; h < H; ++h)
    for (int64_t i = 0; i < L; ++i) {
      std::vector<double> weight(static_cast<size_t>(i) + 1, -INFINITY);
      double most = -INFINITY, sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        if (document[j] != document[i]) continue;
        double s = 0;
        for (int64_t c = 0; c < d; ++c) s += Q[h][i][c] * C[h][z[h][j]][c];
        if (bias.defined() && i / block - j / block <= 1) s += bias[h][i - j].item<double>();
        weight[j] = s;
        most = std::max(most, s);
      }
      for (double& w : weight) sum += w = std::exp(w - most);
      for (int64_t j = 0; j <= i; ++j)
        for (int64_t c = 0; c < d; ++c) O[h][i][c] += weight[j] / sum * V[h][j][c];
    }
  return out;
}

}  // namespace kinfolk::reference
