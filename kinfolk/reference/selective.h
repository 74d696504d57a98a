// Selective state spaces as the articles write them, one step a token. For tests and readers.
#pragma once
#include <ATen/ATen.h>

#include <vector>

namespace kinfolk::reference {
using at::Tensor;

struct Selected {
  Tensor y, h;
};

/// h_t = exp(d_t A) h_{t-1} + u_t, y_t = C_t h_t + D x_t, times silu(z_t). x, d, z [B, L, E], A [E, N], B, C [B, L, N],
/// h [B, E, N]; skip, z may be undefined. zoh: u_t = A^-1 (exp(d_t A) - 1) B_t x_t, else d_t B_t x_t.
/// (Gu and Dao 2023)
inline Selected selective_scan(const Tensor& x, const Tensor& d, const Tensor& a, const Tensor& b, const Tensor& c,
                               const Tensor& skip, const Tensor& z, Tensor h, bool zoh) {
  std::vector<Tensor> out;
  for (int64_t t = 0; t < x.size(1); t++) {
    const Tensor dt = d.select(1, t).unsqueeze(-1), xt = x.select(1, t), bt = b.select(1, t).unsqueeze(1);
    const Tensor u = (zoh ? at::expm1(dt * a) / a : dt.expand_as(h)) * bt * xt.unsqueeze(-1);
    h = at::exp(dt * a) * h + u;
    Tensor y = (h * c.select(1, t).unsqueeze(1)).sum(-1);
    if (skip.defined()) y = y + skip * xt;
    if (z.defined()) y = y * z.select(1, t) * at::sigmoid(z.select(1, t));
    out.push_back(y);
  }
  return {at::stack(out, 1), h};
}

}  // namespace kinfolk::reference
