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

}  // namespace kinfolk::reference
