// Routing attention by its definition (Roy et al. 2021), in double.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace kinfolk::reference {

/// The w tokens of largest mu . x for one centroid, in order. x [N, d], mu [d].
inline std::vector<int64_t> routed(const at::Tensor& x, const at::Tensor& mu, int64_t w) {
  const at::Tensor affinity = at::mv(x, mu);
  const auto a = affinity.accessor<double, 1>();
  std::vector<int64_t> out;
  for (int64_t i = 0; i < x.size(0); ++i) out.push_back(i);
  std::stable_sort(out.begin(), out.end(), [&](int64_t i, int64_t j) { return a[i] > a[j]; });
  out.resize(static_cast<size_t>(std::min(w, x.size(0))));
  std::sort(out.begin(), out.end());
  return out;
}

/// One lane and head, differentiable in q, k and v: for every centroid the softmax of the w queries over the w keys
/// that it takes (causal: j <= i), summed over the centroids that hold a query, or their mean. q, k [N, d] before their
/// norm, v [N, e], centroids [K, d].
inline at::Tensor routing_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const at::Tensor& centroids, int64_t w, bool causal, bool mean) {
  const int64_t N = q.size(0), d = q.size(1);
  const at::Tensor Q = at::layer_norm(q, {d}), K = at::layer_norm(k, {d});
  at::Tensor sum = at::zeros({N, v.size(1)}, at::kDouble), count = at::zeros({N, 1}, at::kDouble);
  for (int64_t c = 0; c < centroids.size(0); ++c) {
    const at::Tensor asking = at::tensor(routed(Q.detach(), centroids[c], w), at::kLong),
                     asked = at::tensor(routed(K.detach(), centroids[c], w), at::kLong);
    const at::Tensor scores =
        at::matmul(Q.index_select(0, asking), K.index_select(0, asked).t()) / std::sqrt(static_cast<double>(d));
    const at::Tensor hidden = asked.unsqueeze(0).gt(asking.unsqueeze(1)).logical_and(at::full({}, causal));
    const at::Tensor none = hidden.all(1, true);
    const at::Tensor weights =
        at::softmax(scores.masked_fill(hidden.logical_and(none.logical_not()), -INFINITY), -1).masked_fill(none, 0);
    sum = sum.index_add(0, asking, at::matmul(weights, v.index_select(0, asked)));
    count.index_add_(0, asking, at::ones({asking.size(0), 1}, at::kDouble));
  }
  return mean ? sum / count.clamp_min(1) : sum;
}

}  // namespace kinfolk::reference
