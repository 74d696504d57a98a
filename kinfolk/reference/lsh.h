// LSH attention by its definition, every pair in every round (Kitaev et al. 2020), in double.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace kinfolk::reference {

struct Lsh {
  int64_t chunk;
  bool causal = false, same = true, dedup = true;
  std::string wrap = "none";
  double self_penalty = 1e5;
};

/// h_r(i) = argmax [x_i R_r; -x_i R_r]. x [N, d], rotations [rounds, d, n/2] -> int64 [rounds, N].
inline at::Tensor lsh_buckets(const at::Tensor& x, const at::Tensor& rotations) {
  const int64_t R = rotations.size(0), d = rotations.size(1), half = rotations.size(2), N = x.size(0);
  at::Tensor h = at::zeros({R, N}, at::kLong);
  const auto X = x.accessor<double, 2>();
  const auto W = rotations.accessor<double, 3>();
  auto out = h.accessor<int64_t, 2>();
  for (int64_t r = 0; r < R; ++r)
    for (int64_t i = 0; i < N; ++i) {
      double most = -INFINITY;
      for (int64_t n = 0; n < 2 * half; ++n) {
        double sum = 0;
        for (int64_t c = 0; c < d; ++c) sum += X[i][c] * W[r][c][n % half];
        if (n >= half) sum = -sum;
        if (sum > most) most = sum, out[r][i] = n;
      }
    }
  return h;
}

/// How often i meets j in round r, by the order of (bucket, position). int64 [rounds, N] -> double [rounds, N, N].
inline at::Tensor lsh_meetings(const at::Tensor& bucket, const Lsh& o) {
  const int64_t R = bucket.size(0), N = bucket.size(1), chunks = (N + o.chunk - 1) / o.chunk;
  const auto h = bucket.accessor<int64_t, 2>();
  std::vector<std::vector<int64_t>> order(static_cast<size_t>(R)), chunk(order);
  for (int64_t r = 0; r < R; ++r) {
    auto& mine = order[static_cast<size_t>(r)];
    for (int64_t i = 0; i < N; ++i) mine.push_back(i);
    std::stable_sort(mine.begin(), mine.end(), [&](int64_t a, int64_t b) { return h[r][a] < h[r][b]; });
    chunk[static_cast<size_t>(r)].resize(static_cast<size_t>(N));
    for (int64_t p = 0; p < N; ++p) chunk[static_cast<size_t>(r)][static_cast<size_t>(mine[p])] = p / o.chunk;
  }
  at::Tensor out = at::zeros({R, N, N}, at::kDouble);
  auto M = out.accessor<double, 3>();
  for (int64_t r = 0; r < R; ++r)
    for (int64_t i = 0; i < N; ++i)
      for (int64_t j = 0; j < N; ++j) {
        if (j == i || (o.causal && j > i)) continue;
        const auto& mine = chunk[static_cast<size_t>(r)];
        const int64_t at = mine[static_cast<size_t>(i)];
        // The round and chunk that stand before the query's, if any.
        int64_t round = r, before = at - 1;
        if (at == 0) {
          if (o.wrap == "all") round = (r + R - 1) % R;
          before = o.wrap == "none" || (chunks == 1 && round == r) ? -1 : chunks - 1;
        }
        const bool alike = !o.same || h[r][i] == h[r][j];
        if (alike && mine[static_cast<size_t>(j)] == at) M[r][i][j] += 1;
        // Buckets of different rounds are different buckets.
        if (alike && before >= 0 && (!o.same || round == r) &&
            chunk[static_cast<size_t>(round)][static_cast<size_t>(j)] == before) {
          M[r][i][j] += 1;
        }
      }
  return out;
}

/// o = sum_r exp(z_r - logsumexp_r z_r) o_r of one lane and head, differentiable. qk [N, d], v [N, e].
inline at::Tensor lsh_attention(const at::Tensor& qk, const at::Tensor& v, const at::Tensor& bucket, const Lsh& o) {
  const int64_t R = bucket.size(0);
  const at::Tensor k = qk / qk.square().sum(-1, true).sqrt();
  const at::Tensor scores = at::matmul(qk, k.t()) / std::sqrt(static_cast<double>(qk.size(1)));
  const at::Tensor meetings = lsh_meetings(bucket, o), in_all = meetings.sum(0);
  const at::Tensor itself = at::eye(qk.size(0), at::kDouble).gt(0);
  std::vector<at::Tensor> reads, z;
  for (int64_t r = 0; r < R; ++r) {
    const at::Tensor met = meetings[r], alone = met.sum(1, true).eq(0);
    // A pair that a round holds twice has two terms.
    at::Tensor s = scores + met.clamp_min(1).log();
    if (o.dedup) s = s - in_all.clamp_min(1).log();
    s = s.masked_fill(met.eq(0).logical_and(itself.logical_and(alone).logical_not()), -INFINITY);
    s = at::where(itself.logical_and(alone), s - o.self_penalty, s);
    reads.push_back(at::matmul(at::softmax(s, -1), v));
    z.push_back(at::logsumexp(s, {-1}));
  }
  const at::Tensor weights = at::softmax(at::stack(z), 0).unsqueeze(-1);
  return (weights * at::stack(reads)).sum(0);
}

}  // namespace kinfolk::reference
