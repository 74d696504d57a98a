// Performer and random feature attention as the articles write them, key by key, in double. For tests and readers.
#pragma once
#include <ATen/ATen.h>

#include <cmath>

namespace kinfolk::reference {
using at::Tensor;

/// phi(x) = M^-1/2 (exp(w.x' - |x'|^2/2 - c) + eps), x' = x d^-1/4, of one vector x [d]; directions [M, d].
inline Tensor positive_feature(const Tensor& x, const Tensor& directions, double c, double eps) {
  const Tensor y = x * std::pow(static_cast<double>(x.size(0)), -0.25);
  const Tensor out = (at::mv(directions, y) - y.dot(y) / 2 - c).exp() + eps;
  return out / std::sqrt(static_cast<double>(directions.size(0)));
}

/// The largest w.x' over the rows of x [n, d].
inline double largest_projection(const Tensor& x, const Tensor& directions) {
  const Tensor y = x * std::pow(static_cast<double>(x.size(-1)), -0.25);
  return at::matmul(y, directions.t()).max().item<double>();
}

/// o_i = phi(q_i)^T sum_j phi(k_j) v_j / phi(q_i)^T sum_j phi(k_j), j <= i where causal; q, k, v [B, H, L, d],
/// directions [H, M, d]. The stabilisers are those of the published code: of a query its own largest w.q', of keys that
/// of all. (Choromanski et al. 2021)
inline Tensor performer(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& directions, bool causal,
                        double eps) {
  Tensor out = at::zeros_like(v);
  for (int64_t b = 0; b < q.size(0); b++)
    for (int64_t h = 0; h < q.size(1); h++) {
      const Tensor w = directions[h];
      const double of_keys = largest_projection(k[b][h].detach(), w);
      for (int64_t i = 0; i < q.size(2); i++) {
        const Tensor fq = positive_feature(q[b][h][i], w, largest_projection(q[b][h][i].detach().unsqueeze(0), w), eps);
        Tensor sum = at::zeros_like(v[b][h][i]), weight = at::zeros({}, v.options());
        for (int64_t j = 0; j < (causal ? i + 1 : k.size(2)); j++) {
          const Tensor score = fq.dot(positive_feature(k[b][h][j], w, of_keys, eps));
          sum = sum + score * v[b][h][j], weight = weight + score;
        }
        out[b][h][i] = sum / weight;
      }
    }
  return out;
}

/// o_t = phi(q_t)^T S_t / phi(q_t).z_t, S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T and z_t alike; gate [B, H, L] are
/// logits of g, undefined: plain sums. phi(x) = [sin(w.x~), cos(w.x~)] M^-1/2, x~ = x/|x|. (Peng et al. 2021)
inline Tensor rfa(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& directions, bool causal,
                  const Tensor& gate) {
  const auto phi = [&](const Tensor& x, int64_t h) {
    const Tensor a = at::mv(directions[h], x / x.dot(x).sqrt());
    return at::cat({a.sin(), a.cos()}) / std::sqrt(static_cast<double>(directions.size(1)));
  };
  Tensor out = at::zeros_like(v);
  for (int64_t b = 0; b < q.size(0); b++)
    for (int64_t h = 0; h < q.size(1); h++) {
      Tensor S = at::zeros({2 * directions.size(1), v.size(3)}, v.options());
      Tensor z = at::zeros({2 * directions.size(1)}, v.options());
      const auto take_in = [&](int64_t t) {
        const Tensor f = phi(k[b][h][t], h);
        if (!gate.defined()) {
          S = S + f.outer(v[b][h][t]), z = z + f;
          return;
        }
        const Tensor g = at::sigmoid(gate[b][h][t]);
        S = g * S + (1 - g) * f.outer(v[b][h][t]), z = g * z + (1 - g) * f;
      };
      if (!causal)
        for (int64_t t = 0; t < k.size(2); t++) take_in(t);
      for (int64_t t = 0; t < q.size(2); t++) {
        if (causal) take_in(t);
        const Tensor f = phi(q[b][h][t], h);
        out[b][h][t] = at::mv(S.t(), f) / f.dot(z);
      }
    }
  return out;
}

}  // namespace kinfolk::reference
