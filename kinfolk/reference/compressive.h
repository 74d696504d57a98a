// The Compressive Transformer's memory in loops (Rae et al. 2019), in double: one lane, one head, no positions.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace kinfolk::reference {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

inline Matrix matrix_of(const at::Tensor& t) {
  const at::Tensor d = t.detach().to(at::kDouble).contiguous();
  Matrix out(static_cast<size_t>(d.size(0)), Row(static_cast<size_t>(d.size(1))));
  for (int64_t i = 0; i < d.size(0); ++i)
    for (int64_t j = 0; j < d.size(1); ++j) out[i][j] = d.const_data_ptr<double>()[i * d.size(1) + j];
  return out;
}
inline at::Tensor tensor_of(const Matrix& m) {
  std::vector<at::Tensor> rows;
  for (const Row& row : m) rows.push_back(at::tensor(row, at::kDouble));
  return at::stack(rows);
}

/// x W^T, W [out, in].
inline Matrix times(const Matrix& x, const Matrix& w) {
  Matrix out(x.size(), Row(w.size(), 0));
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t o = 0; o < w.size(); ++o)
      for (size_t c = 0; c < w[o].size(); ++c) out[i][o] += x[i][c] * w[o][c];
  return out;
}

/// What a compression makes of n old rows, n a multiple of c.
struct Compressor {
  std::string kind;  ///< max_pool, mean_pool, conv, dilated_conv, most_used
  int64_t c = 1, taps = 1, dilation = 1;
  std::vector<Matrix> weight = {};  ///< [tap][out][in]
  Row bias = {};

  Matrix operator()(const Matrix& old, const Row& usage = {}) const {
    const auto n = static_cast<int64_t>(old.size());
    const size_t width = old.empty() ? 0 : old[0].size();
    Matrix out;
    if (kind == "most_used") {
      std::vector<int64_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return usage[a] > usage[b]; });
      order.resize(static_cast<size_t>(n / c));
      std::sort(order.begin(), order.end());
      for (const int64_t i : order) out.push_back(old[i]);
      return out;
    }
    const int64_t before = static_cast<int64_t>(std::floor(static_cast<double>((taps - 1) * dilation + 1 - c) / 2));
    for (int64_t slot = 0; slot < n / c; ++slot) {
      Row row(width, kind == "max_pool" ? -INFINITY : 0);
      if (kind == "max_pool" || kind == "mean_pool") {
        for (int64_t t = 0; t < c; ++t)
          for (size_t d = 0; d < width; ++d) {
            const double x = old[slot * c + t][d];
            row[d] = kind == "max_pool" ? std::max(row[d], x) : row[d] + x / static_cast<double>(c);
          }
      } else {
        row = bias;
        for (int64_t t = 0; t < taps; ++t) {
          const int64_t from = slot * c + t * dilation - before;
          if (from < 0 || from >= n) continue;
          for (size_t o = 0; o < width; ++o)
            for (size_t d = 0; d < width; ++d) row[o] += weight[t][o][d] * old[from][d];
        }
      }
      out.push_back(row);
    }
    return out;
  }
};

struct Projections {
  Matrix q, k, v;  ///< [d, D]
  double scale = 1;
};

/// attn(h, m) = softmax(scale (h Wq^T) (m Wk^T)^T) (m Wv^T), keys of row i: the first visible[i] of m, all where empty.
inline Matrix attend_rows(const Matrix& h, const Matrix& m, const Projections& p,
                          const std::vector<size_t>& visible = {}, Matrix* weights = nullptr) {
  const Matrix q = times(h, p.q), k = times(m, p.k), v = times(m, p.v);
  Matrix out;
  if (weights) weights->assign(h.size(), Row(m.size(), 0));
  for (size_t i = 0; i < h.size(); ++i) {
    const size_t count = visible.empty() ? m.size() : visible[i];
    Row e(count);
    double sum = 0;
    for (size_t j = 0; j < count; ++j) {
      double s = 0;
      for (size_t d = 0; d < q[i].size(); ++d) s += q[i][d] * k[j][d];
      sum += e[j] = std::exp(s * p.scale);
    }
    Row row(p.v.size(), 0);
    for (size_t j = 0; j < count; ++j) {
      if (weights) (*weights)[i][j] = e[j] / sum;
      for (size_t d = 0; d < row.size(); ++d) row[d] += e[j] / sum * v[j][d];
    }
    out.push_back(row);
  }
  return out;
}

struct CompressiveResult {
  Matrix out;       ///< [L, d], what each query reads, before the branch's output matrix
  double loss = 0;  ///< attention reconstruction: sum over segments of N |attn(h, old) - attn(h, f(old))|_2, over L
  Matrix memory, slots;
};

/// Algorithm 1 of the article over a text of whole segments of n inputs, m_m and n multiples of c: the FIFO m and the
/// slots cm start empty, and nothing leaves the FIFO before it is full.
inline CompressiveResult compressive(const Matrix& x, int64_t n, int64_t m_m, int64_t m_cm, const Compressor& f,
                                     const Projections& p) {
  CompressiveResult r;
  Row usage;  // of the rows of the FIFO: attention received from later segments, shared among FIFO and own segment
  const auto length = static_cast<int64_t>(x.size());
  for (int64_t s = 0; s < length; s += n) {
    const Matrix h(x.begin() + s, x.begin() + s + n);
    Matrix keys = r.slots;
    keys.insert(keys.end(), r.memory.begin(), r.memory.end());
    const size_t past = keys.size(), in_memory = r.memory.size();
    keys.insert(keys.end(), h.begin(), h.end());
    std::vector<size_t> visible, visible_without;
    for (int64_t i = 0; i < n; ++i) {
      visible.push_back(past + static_cast<size_t>(i) + 1);
      visible_without.push_back(in_memory + static_cast<size_t>(i) + 1);
    }
    for (const Row& row : attend_rows(h, keys, p, visible)) r.out.push_back(row);
    Matrix weights;
    attend_rows(h, Matrix(keys.begin() + static_cast<int64_t>(r.slots.size()), keys.end()), p, visible_without,
                &weights);
    for (const Row& of : weights)
      for (size_t j = 0; j < in_memory; ++j) usage[j] += of[j];

    r.memory.insert(r.memory.end(), h.begin(), h.end());
    usage.resize(r.memory.size(), 0);
    const int64_t leaving = std::max<int64_t>(0, static_cast<int64_t>(r.memory.size()) - m_m);
    if (leaving == 0) continue;
    const Matrix old(r.memory.begin(), r.memory.begin() + leaving);
    const Matrix made = f(old, Row(usage.begin(), usage.begin() + leaving));
    r.memory.erase(r.memory.begin(), r.memory.begin() + leaving);
    usage.erase(usage.begin(), usage.begin() + leaving);
    const Matrix a = attend_rows(h, old, p), b = attend_rows(h, made, p);
    double square = 0;
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t d = 0; d < a[i].size(); ++d) square += (a[i][d] - b[i][d]) * (a[i][d] - b[i][d]);
    r.loss += static_cast<double>(n) * std::sqrt(square) / static_cast<double>(length);
    r.slots.insert(r.slots.end(), made.begin(), made.end());
    if (static_cast<int64_t>(r.slots.size()) > m_cm) {
      r.slots.erase(r.slots.begin(), r.slots.end() - m_cm);
    }
  }
  return r;
}

}  // namespace kinfolk::reference
