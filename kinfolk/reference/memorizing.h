// The Memorizing Transformer's two reads in loops (Wu et al. 2022), in double.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace kinfolk::reference {

struct Memorizing {
  int64_t segment, local, memory, neighbours;  ///< N, M, C, k
  double scale = 0;                            ///< of the scores; 0: keys and queries of length one, exp(log_scale_h)
  std::vector<double> gate, log_scale;         ///< of each head
};

/// One lane: q, k, v [H, L, d] of its valid tokens in order, document [L]. Query i in the segment from s reads keys in
/// [s - M, i], and the k best of [s - M - C, s - M), both of its own document.
inline at::Tensor memorizing(const Memorizing& m, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::vector<int64_t>& document) {
  const int64_t H = q.size(0), L = q.size(1), d = q.size(2);
  at::Tensor out = at::zeros_like(q);
  const auto Q = q.accessor<double, 3>(), K = k.accessor<double, 3>(), V = v.accessor<double, 3>();
  auto O = out.accessor<double, 3>();
  for (int64_t h = 0; h < H; ++h) {
    const auto length = [&](const auto& X, int64_t i) {
      double sum = 0;
      for (int64_t c = 0; c < d; ++c) sum += X[h][i][c] * X[h][i][c];
      return std::sqrt(sum);
    };
    const auto score = [&](int64_t i, int64_t j) {
      double sum = 0;
      for (int64_t c = 0; c < d; ++c) sum += Q[h][i][c] * K[h][j][c];
      return m.scale > 0 ? sum * m.scale : std::exp(m.log_scale[h]) * sum / length(Q, i) / length(K, j);
    };
    for (int64_t i = 0; i < L; ++i) {
      const int64_t s = i / m.segment * m.segment;
      std::vector<std::pair<double, int64_t>> near, far;  // minus score, key
      for (int64_t j = 0; j <= i; ++j) {
        if (document[j] != document[i]) continue;
        if (j >= s - m.local) {
          near.emplace_back(-score(i, j), j);
        } else if (j >= s - m.local - m.memory) {
          far.emplace_back(-score(i, j), j);
        }
      }
      std::sort(far.begin(), far.end());
      if (static_cast<int64_t>(far.size()) > m.neighbours) far.resize(m.neighbours);
      const auto read = [&](const std::vector<std::pair<double, int64_t>>& keys) {
        double most = -INFINITY, sum = 0;
        for (const auto& [minus, j] : keys) most = std::max(most, -minus);
        std::vector<double> mean(d, 0);
        for (const auto& [minus, j] : keys) sum += std::exp(-minus - most);
        for (const auto& [minus, j] : keys)
          for (int64_t c = 0; c < d; ++c) mean[c] += std::exp(-minus - most) / sum * V[h][j][c];
        return mean;
      };
      const double g = far.empty() ? 0 : 1 / (1 + std::exp(-m.gate[h]));
      const auto a = read(near), b = read(far);
      for (int64_t c = 0; c < d; ++c) O[h][i][c] = g * b[c] + (1 - g) * a[c];
    }
  }
  return out;
}

}  // namespace kinfolk::reference
