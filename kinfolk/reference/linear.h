// Linear attention and the delta rule as the articles write them, one step a token, in double. For tests and readers.
#pragma once
#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace kinfolk::reference {
using at::Tensor;

struct Recurred {
  Tensor out, state, sum;
};

/// phi: "identity" or "elu1" (elu(x) + 1).
inline Tensor feature(const Tensor& x, const std::string& phi) {
  return phi == "elu1" ? at::where(x > 0, x + 1, x.clamp_max(0).exp()) : x;
}

/// S_t = S_{t-1} + phi(k_t) v_t^T, z_t = z_{t-1} + phi(k_t); o_t = a S_t phi(q_t) / (a phi(q_t).z_t + eps), or without
/// the division. q, k [B, H, L, K], v [B, H, L, V], state [B, H, K, V], sum [B, H, K]. (Katharopoulos et al. 2020)
inline Recurred linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, Tensor state, Tensor sum,
                                 const std::string& phi, bool normalise, double a, double eps) {
  const Tensor fq = a * feature(q, phi), fk = feature(k, phi);
  std::vector<Tensor> out;
  for (int64_t t = 0; t < q.size(2); t++) {
    const Tensor qt = fq.select(2, t), kt = fk.select(2, t), vt = v.select(2, t);  // [B, H, K], [B, H, V]
    state = state + kt.unsqueeze(-1) * vt.unsqueeze(-2);
    sum = sum + kt;
    Tensor o = (qt.unsqueeze(-1) * state).sum(-2);
    if (normalise) o = o / ((qt * sum).sum(-1, true) + eps);
    out.push_back(o);
  }
  return {at::stack(out, 2), state, sum};
}

/// S_t = S_{t-1} + beta_t k_t (v_t - k_t^T S_{t-1})^T, o_t = a S_t^T q_t; beta [B, H, L] or [B, H, L, V].
/// (Schlag et al. 2021)
inline Recurred delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, Tensor state,
                           double a) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < q.size(2); t++) {
    const Tensor qt = q.select(2, t), kt = k.select(2, t), vt = v.select(2, t);
    const Tensor bt = beta.dim() == 3 ? beta.select(2, t).unsqueeze(-1) : beta.select(2, t);
    const Tensor old = (kt.unsqueeze(-1) * state).sum(-2);  // [B, H, V]
    state = state + kt.unsqueeze(-1) * (bt * (vt - old)).unsqueeze(-2);
    out.push_back(a * (qt.unsqueeze(-1) * state).sum(-2));
  }
  return {at::stack(out, 2), state, {}};
}

/// The delta rule on exp(log_decay_t) S_{t-1}; log_decay [B, H, L]. (Yang et al. 2024, gated delta networks)
inline Recurred gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                 const Tensor& log_decay, Tensor state, double a) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < q.size(2); t++) {
    const auto part = [&](const Tensor& x) { return x.narrow(2, t, 1); };
    const Tensor decayed = log_decay.select(2, t).exp().unsqueeze(-1).unsqueeze(-1) * state;
    const Recurred one = delta_rule(part(q), part(k), part(v), part(beta), decayed, a);
    state = one.state;
    out.push_back(one.out);
  }
  return {at::cat(out, 2), state, {}};
}

/// y_t = sum_{j < W} w[:, W-1-j] x_{t-j} + b, then silu or nothing; x [B, L, D], past [B, D, W-1] oldest first.
inline Recurred short_conv(const Tensor& x, const Tensor& w, const Tensor& b, Tensor past, bool silu) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < x.size(1); t++) {
    const Tensor window = at::cat({past, x.select(1, t).unsqueeze(-1)}, -1);  // [B, D, W]
    Tensor y = (window * w).sum(-1);
    if (b.defined()) y = y + b;
    out.push_back(silu ? y * at::sigmoid(y) : y);
    past = window.narrow(-1, 1, w.size(1) - 1);
  }
  return {at::stack(out, 1), past, {}};
}

}  // namespace kinfolk::reference
