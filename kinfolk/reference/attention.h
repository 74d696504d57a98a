// Softmax attention by its definition, one pair at a time in double precision: out_i = sum_j softmax_j(s_ij) v_j over
// the keys j that query i sees (Vaswani et al. 2017; masks of Beltagy et al. 2020). For tests.
#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <vector>

namespace kinfolk::reference {

/// One set of keys. k[b] are the keys of band b.
struct AttentionKeys {
  std::vector<at::Tensor> k;             ///< [B, G, S, d] each
  at::Tensor v;                          ///< [B, G, S, d]
  at::Tensor at, document, from, until;  ///< as in kinfolk::Keys; undefined where there is none
};

struct Attention {
  std::vector<at::Tensor> q;                      ///< [B, H, L, d] of each band
  std::vector<std::pair<int64_t, int64_t>> band;  ///< nearest <= i - j < farthest
  std::vector<double> scale;
  at::Tensor q_at, q_document;
  std::vector<AttentionKeys> keys;
  std::function<bool(int64_t i, int64_t j)> sees;
  /// The score s of query row l (position i) and key position j becomes this; empty: s itself.
  std::function<double(double s, int64_t b, int64_t h, int64_t l, int64_t i, int64_t j)> change;
};

struct AttentionRead {
  at::Tensor out, lse;  ///< double [B, H, L, d], [B, H, L]
};

/// Rows first_row.. only, when it is not 0; earlier rows stay 0.
inline AttentionRead attention(const Attention& a, int64_t first_row = 0) {
  const auto real = [](const at::Tensor& x) { return x.detach().to(at::kDouble).contiguous(); };
  const auto whole = [](const at::Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const int64_t B = a.q[0].size(0), H = a.q[0].size(1), L = a.q[0].size(2), d = a.q[0].size(3);
  const int64_t G = a.keys[0].v.size(1), dv = a.keys[0].v.size(3);
  std::vector<at::Tensor> q;
  for (const auto& x : a.q) q.push_back(real(x));
  AttentionRead read{at::zeros({B, H, L, dv}, at::kDouble), at::full({B, H, L}, -INFINITY, at::kDouble)};
  const at::Tensor q_at = whole(a.q_at), q_document = whole(a.q_document);
  struct Set {
    std::vector<at::Tensor> k;
    at::Tensor v, at, document, from, until;
  };
  std::vector<Set> sets;
  for (const auto& key : a.keys) {
    Set set{{}, real(key.v), whole(key.at), whole(key.document), whole(key.from), whole(key.until)};
    for (const auto& k : key.k) set.k.push_back(real(k));
    sets.push_back(set);
  }
  const auto number = [](const at::Tensor& x, int64_t b, int64_t n) {
    return x.const_data_ptr<int64_t>()[b * x.size(1) + n];
  };
  const auto row = [](const at::Tensor& x, int64_t b, int64_t h, int64_t n) {
    return x.const_data_ptr<double>() + ((b * x.size(1) + h) * x.size(2) + n) * x.size(3);
  };
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t l = first_row; l < L; ++l) {
        const int64_t i = number(q_at, b, l), g = h / (H / G);
        if (i < 0) continue;
        std::vector<double> s;
        std::vector<const double*> v;
        double m = -INFINITY;
        for (const Set& set : sets)
          for (int64_t n = 0; n < set.v.size(2); ++n) {
            const int64_t j = number(set.at, b, n);
            if (j < 0 || !a.sees(i, j)) continue;
            if (q_document.defined() && set.document.defined() &&
                number(q_document, b, l) != number(set.document, b, n)) {
              continue;
            }
            if (set.from.defined() && j < number(set.from, b, l)) continue;
            if (set.until.defined() && j >= number(set.until, b, l)) continue;
            for (size_t band = 0; band < a.band.size(); ++band) {
              if (i - j < a.band[band].first || i - j >= a.band[band].second) continue;
              double dot = 0;
              for (int64_t e = 0; e < d; ++e) dot += row(q[band], b, h, l)[e] * row(set.k[band], b, g, n)[e];
              dot *= a.scale[band];
              s.push_back(a.change ? a.change(dot, b, h, l, i, j) : dot);
              v.push_back(row(set.v, b, g, n));
              m = std::max(m, s.back());
            }
          }
        if (m == -INFINITY) continue;
        double z = 0;
        for (const double score : s) z += std::exp(score - m);
        double* out = read.out.data_ptr<double>() + ((b * H + h) * L + l) * dv;
        for (size_t n = 0; n < s.size(); ++n)
          for (int64_t e = 0; e < dv; ++e) out[e] += std::exp(s[n] - m) / z * v[n][e];
        read.lse.data_ptr<double>()[(b * H + h) * L + l] = m + std::log(z);
      }
  return read;
}

}  // namespace kinfolk::reference
