// The Universal Transformer in loops (Dehghani et al. 2019), in double: heads, halting and all.
#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "kinfolk/reference/act.h"

namespace kinfolk::reference {

/// Weights act from the right (x W): wq, wk, wv, wo [D, D]; w1 [D, F], b1 [F], w2 [F, D], b2 [D]; wp [D], bp.
struct UniversalWeights {
  at::Tensor wq, wk, wv, wo, w1, b1, w2, b2, wp;
  double bp = 0;
};

struct UniversalResult {
  at::Tensor y;        ///< [N, D]
  at::Tensor updates;  ///< int64 [N]
  at::Tensor ponder;   ///< [N]
};

/// PE[t, p, 2i] = sin(p / b^(2i/D)) + sin(t / b^(2i/D)), the cosine in column 2i + 1; p from 0, t from 1.
inline at::Tensor universal_signal(int64_t positions, int64_t t, int64_t D, double base = 10000) {
  at::Tensor out = at::zeros({positions, D}, at::kDouble);
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t c = 0; c < D; ++c) {
      const double f = std::pow(base, -2.0 * static_cast<double>(c / 2) / static_cast<double>(D));
      const double a = static_cast<double>(p) * f, b = static_cast<double>(t) * f;
      out[p][c] = c % 2 ? std::cos(a) + std::cos(b) : std::sin(a) + std::sin(b);
    }
  }
  return out;
}

/// x [N, D], one sequence; post-norm without affine, ACT in Graves' form. `with_position`: the residual takes u = h +
/// PE, not h. `causal`: a query sees keys up to its own position, else all.
inline UniversalResult universal(const at::Tensor& x, const UniversalWeights& w, int64_t heads, int64_t steps,
                                 double eps, bool with_position, bool causal) {
  const int64_t N = x.size(0), D = x.size(1), d = D / heads;
  const auto norm = [&](const at::Tensor& row) {
    const at::Tensor centred = row - row.mean();
    return centred / (centred.square().mean() + 1e-5).sqrt();
  };
  at::Tensor h = x.clone();
  std::vector<double> sum(static_cast<size_t>(N), 0);
  std::vector<at::Tensor> states, logits;
  for (int64_t t = 1; t <= steps; ++t) {
    const at::Tensor u = h + universal_signal(N, t, D);
    const at::Tensor q = u.mm(w.wq), k = u.mm(w.wk), v = u.mm(w.wv);
    at::Tensor next = h.clone(), logit = at::zeros({N}, at::kDouble);
    for (int64_t i = 0; i < N; ++i) {
      logit[i] = u[i].dot(w.wp) + w.bp;
      if (sum[static_cast<size_t>(i)] >= 1 - eps) continue;  // halted: keeps its last state
      at::Tensor read = at::zeros({D}, at::kDouble);
      for (int64_t g = 0; g < heads; ++g) {
        const int64_t last = causal ? i : N - 1;
        std::vector<double> e(static_cast<size_t>(last + 1));
        double all = 0;
        for (int64_t j = 0; j <= last; ++j) {
          const double score = q[i].narrow(0, g * d, d).dot(k[j].narrow(0, g * d, d)).item<double>();
          all += e[static_cast<size_t>(j)] = std::exp(score / std::sqrt(static_cast<double>(d)));
        }
        for (int64_t j = 0; j <= last; ++j) {
          read.narrow(0, g * d, d) += v[j].narrow(0, g * d, d) * (e[static_cast<size_t>(j)] / all);
        }
      }
      const at::Tensor a = norm((with_position ? u : h)[i] + read.unsqueeze(0).mm(w.wo)[0]);
      const at::Tensor hidden = (a.unsqueeze(0).mm(w.w1)[0] + w.b1).clamp_min(0);
      next[i] = norm(a + hidden.unsqueeze(0).mm(w.w2)[0] + w.b2);
      sum[static_cast<size_t>(i)] += 1 / (1 + std::exp(-logit[i].item<double>()));
    }
    h = next;
    states.push_back(h);
    logits.push_back(logit);
  }
  const ActResult weighed = act(at::stack(states), at::stack(logits), eps, false, true);
  return {weighed.y, weighed.updates, weighed.ponder};
}

}  // namespace kinfolk::reference
