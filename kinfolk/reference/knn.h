// Nearest-neighbour language model in loops (Khandelwal et al. 2020), in double.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace kinfolk::reference {

struct KnnResult {
  at::Tensor p, p_knn;    ///< [M, V]
  at::Tensor neighbours;  ///< int64 [M, k], nearest first
};

/// query [M, D], keys [N, D], logits [M, V] double; tokens int64 [N].
inline KnnResult knn_lm(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& tokens,
                        const at::Tensor& logits, int64_t k, double lambda, double temperature, bool squared) {
  const int64_t M = query.size(0), N = keys.size(0), D = keys.size(1), V = logits.size(1);
  KnnResult r{at::zeros({M, V}, at::kDouble), at::zeros({M, V}, at::kDouble), at::zeros({M, k}, at::kLong)};
  const auto q = query.accessor<double, 2>(), key = keys.accessor<double, 2>(), z = logits.accessor<double, 2>();
  const auto w = tokens.accessor<int64_t, 1>();
  auto p = r.p.accessor<double, 2>(), p_knn = r.p_knn.accessor<double, 2>();
  for (int64_t m = 0; m < M; ++m) {
    std::vector<std::pair<double, int64_t>> d;
    for (int64_t s = 0; s < N; ++s) {
      double sum = 0;
      for (int64_t c = 0; c < D; ++c) sum += (q[m][c] - key[s][c]) * (q[m][c] - key[s][c]);
      d.emplace_back(squared ? sum : std::sqrt(sum), s);
    }
    std::sort(d.begin(), d.end());
    double all = 0, norm = 0;
    for (int64_t i = 0; i < k; ++i) all += std::exp(-(d[i].first - d[0].first) / temperature);
    for (int64_t i = 0; i < k; ++i) {
      r.neighbours[m][i] = d[i].second;
      p_knn[m][w[d[i].second]] += std::exp(-(d[i].first - d[0].first) / temperature) / all;
    }
    double largest = z[m][0];
    for (int64_t y = 1; y < V; ++y) largest = std::max(largest, z[m][y]);
    for (int64_t y = 0; y < V; ++y) norm += std::exp(z[m][y] - largest);
    for (int64_t y = 0; y < V; ++y) p[m][y] = lambda * p_knn[m][y] + (1 - lambda) * std::exp(z[m][y] - largest) / norm;
  }
  return r;
}

struct SpalmResult {
  at::Tensor m, z;  ///< [M, D]
  at::Tensor g;     ///< [M]
};

/// Adaptive semiparametric language model (Yogatama et al. 2021): h [M, D], retrieved y [M, k, D], w_g [D], double;
/// the first found[i] of the k are there.
inline SpalmResult spalm(const at::Tensor& h, const at::Tensor& y, const at::Tensor& w_g,
                         const std::vector<int64_t>& found) {
  const int64_t M = h.size(0), D = h.size(1);
  SpalmResult r{at::zeros({M, D}, at::kDouble), at::zeros({M, D}, at::kDouble), at::zeros({M}, at::kDouble)};
  const auto H = h.accessor<double, 2>();
  const auto Y = y.accessor<double, 3>();
  const auto W = w_g.accessor<double, 1>();
  for (int64_t i = 0; i < M; ++i) {
    const auto k = found[static_cast<size_t>(i)];
    std::vector<double> s(static_cast<size_t>(k));
    double largest = -INFINITY, all = 0, logit = 0;
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t c = 0; c < D; ++c) s[static_cast<size_t>(j)] += Y[i][j][c] * H[i][c];
      largest = std::max(largest, s[static_cast<size_t>(j)]);
    }
    for (auto& score : s) all += score = std::exp(score - largest);
    for (int64_t c = 0; c < D; ++c) logit += W[c] * H[i][c];
    const double g = 1 / (1 + std::exp(-logit));
    r.g[i] = g;
    for (int64_t c = 0; c < D; ++c) {
      double m = 0;
      for (int64_t j = 0; j < k; ++j) m += s[static_cast<size_t>(j)] / all * Y[i][j][c];
      r.m[i][c] = m;
      r.z[i][c] = k == 0 ? H[i][c] : (1 - g) * m + g * H[i][c];
    }
  }
  return r;
}

}  // namespace kinfolk::reference
