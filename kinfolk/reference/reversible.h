// Reversible layers in loops (Gomez et al. 2017; Kitaev et al. 2020), in double, with the article's symbols. For tests.
#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <utility>
#include <vector>

namespace kinfolk::reference {

/// Weights act from the right (x W): wq, wk, wv, wo [D, D]; w1 [D, F], b1 [F], w2 [F, D], b2 [D].
struct ReversibleLayer {
  at::Tensor wq, wk, wv, wo, w1, b1, w2, b2;
};

/// F(x)_i = sum_(j <= i) softmax_j(q_i . k_j / sqrt(D)) v_j wo, one head.  x [N, D]
inline at::Tensor reversible_f(const at::Tensor& x, const ReversibleLayer& w) {
  const int64_t N = x.size(0), D = x.size(1);
  const at::Tensor q = x.mm(w.wq), k = x.mm(w.wk), v = x.mm(w.wv);
  at::Tensor read = at::zeros({N, D}, at::kDouble);
  for (int64_t i = 0; i < N; ++i) {
    double all = 0;
    for (int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (int64_t c = 0; c < D; ++c) dot += q[i][c].item<double>() * k[j][c].item<double>();
      const double e = std::exp(dot / std::sqrt(static_cast<double>(D)));
      all += e;
      for (int64_t c = 0; c < D; ++c) read[i][c] += e * v[j][c].item<double>();
    }
    read[i] /= all;
  }
  return read.mm(w.wo);
}

/// G(x) = relu(x w1 + b1) w2 + b2, position by position.
inline at::Tensor reversible_g(const at::Tensor& x, const ReversibleLayer& w) {
  at::Tensor out = at::zeros_like(x);
  for (int64_t i = 0; i < x.size(0); ++i) {
    const at::Tensor hidden = (x[i].unsqueeze(0).mm(w.w1)[0] + w.b1).clamp_min(0);
    out[i] = hidden.unsqueeze(0).mm(w.w2)[0] + w.b2;
  }
  return out;
}

/// y1 = x1 + F(x2), y2 = x2 + G(y1), layer after layer.
inline std::pair<at::Tensor, at::Tensor> reversible(at::Tensor x1, at::Tensor x2,
                                                    const std::vector<ReversibleLayer>& layers) {
  for (const auto& w : layers) {
    x1 = x1 + reversible_f(x2, w);
    x2 = x2 + reversible_g(x1, w);
  }
  return {x1, x2};
}

/// x2 = y2 - G(y1), x1 = y1 - F(x2), from the last layer down.
inline std::pair<at::Tensor, at::Tensor> reversible_inverse(at::Tensor y1, at::Tensor y2,
                                                            const std::vector<ReversibleLayer>& layers) {
  for (auto w = layers.rbegin(); w != layers.rend(); ++w) {
    y2 = y2 - reversible_g(y1, *w);
    y1 = y1 - reversible_f(y2, *w);
  }
  return {y1, y2};
}

}  // namespace kinfolk::reference
