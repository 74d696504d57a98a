// Recurrences with decays as the articles write them, one step a token, in double. For tests and readers.
#pragma once
#include <ATen/ATen.h>

#include <vector>

namespace kinfolk::reference {
using at::Tensor;

struct Decayed {
  Tensor out, state;
};

/// S_t = gamma S_{t-1} + k_t v_t^T, o_t = a S_t^T q_t; gamma [H].   (retention; Sun et al. 2023)
inline Decayed retention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gamma, Tensor state,
                         double a) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < q.size(2); t++) {
    state = gamma.view({1, -1, 1, 1}) * state + k.select(2, t).unsqueeze(-1) * v.select(2, t).unsqueeze(-2);
    out.push_back(a * (q.select(2, t).unsqueeze(-1) * state).sum(-2));
  }
  return {at::stack(out, 2), state};
}

/// S_t = G_t (.) S_{t-1} + k_t v_t^T, o_t = a S_t^T q_t with G_t = gamma_t (gated retention, decay [B, H, L]), or
/// gamma_t[key channel] (GLA, decay [B, H, L, K]; Yang et al. 2023).
inline Decayed gated(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& decay, Tensor state, double a) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < q.size(2); t++) {
    const Tensor g = decay.select(2, t).unsqueeze(-1);  // [B, H, 1] or [B, H, K, 1]
    state = (g.dim() == 3 ? g.unsqueeze(-1) : g) * state + k.select(2, t).unsqueeze(-1) * v.select(2, t).unsqueeze(-2);
    out.push_back(a * (q.select(2, t).unsqueeze(-1) * state).sum(-2));
  }
  return {at::stack(out, 2), state};
}

/// H_t = (e_t s_t^T) (.) H_{t-1} + v_t k_t^T, y_t = H_t q_t; the state here is H^T.   (general reflection)
inline Decayed reflection(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& e, const Tensor& s,
                          Tensor state, double a) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < q.size(2); t++) {
    const Tensor gate = s.select(2, t).unsqueeze(-1) * e.select(2, t).unsqueeze(-2);  // [B, H, K, V]
    state = gate * state + k.select(2, t).unsqueeze(-1) * v.select(2, t).unsqueeze(-2);
    out.push_back(a * (q.select(2, t).unsqueeze(-1) * state).sum(-2));
  }
  return {at::stack(out, 2), state};
}

/// o_t = r_t^T (S_{t-1} + diag(u) k_t v_t^T), S_t = diag(w_t) S_{t-1} + k_t v_t^T.   (RWKV-6; Peng et al. 2024)
inline Decayed rwkv6(const Tensor& r, const Tensor& k, const Tensor& v, const Tensor& w, const Tensor& u,
                     Tensor state) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < r.size(2); t++) {
    const Tensor kt = k.select(2, t).unsqueeze(-1), vt = v.select(2, t).unsqueeze(-2);
    out.push_back((r.select(2, t).unsqueeze(-1) * (state + u.unsqueeze(-1) * kt * vt)).sum(-2));
    state = w.select(2, t).unsqueeze(-1) * state + kt * vt;
  }
  return {at::stack(out, 2), state};
}

/// h_t = f_t h_{t-1} + u_t, entry by entry; f, u [B, L, D], h [B, D].   (HGRN; Qin et al. 2023)
inline Decayed gated_sum(const Tensor& f, const Tensor& u, Tensor h) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < u.size(1); t++) {
    h = f.select(1, t) * h + u.select(1, t);
    out.push_back(h);
  }
  return {at::stack(out, 1), h};
}

/// theta_j = 10000^-linspace(0, 1, d/2), pairs (2j, 2j + 1) of x [B, H, L, d] turned by (start + t) theta_j.   (RetNet)
inline Tensor retnet_rotation(const Tensor& x, int64_t start) {
  const int64_t half = x.size(3) / 2;
  const Tensor theta = at::pow(10000.0, at::linspace(0, 1, half, at::kDouble)).reciprocal();
  const Tensor angle = (at::arange(x.size(2), at::kDouble) + start).unsqueeze(-1) * theta;  // [L, d/2]
  const Tensor c = angle.cos().to(x.scalar_type()), s = angle.sin().to(x.scalar_type());
  const Tensor two = x.unflatten(-1, {half, 2}), a = two.select(-1, 0), b = two.select(-1, 1);
  return at::stack({a * c - b * s, a * s + b * c}, -1).flatten(-2);
}

}  // namespace kinfolk::reference
