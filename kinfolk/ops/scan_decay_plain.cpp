// scan_decay in chunks of torch operators, differentiable as often as they are.
#include "kinfolk/ops/scan_decay_chunks.h"

namespace kinfolk {
namespace {

/// Products of decays inside chunks: no exponent, no division, so that 0 and any sign are as good as any other decay.
struct Within {
  Tensor between;  ///< P_ij = a_{j+1} ... a_i for j <= i, 0 above the diagonal  [N, n, C, C, A]
  Tensor before;   ///< a_0 ... a_i: what is left of the incoming state          [N, n, C, A]
  Tensor after;    ///< a_{j+1} ... a_{C-1}: what is left at the end             [N, n, C, A]
  Tensor whole;    ///< a_0 ... a_{C-1}                                          [N, n, A]
  bool defined() const { return between.defined(); }
};

Within within(const Tensor& a) {  // [N, n, C, A]
  if (!a.defined()) return {};
  const int64_t C = a.size(2);
  const Tensor one = at::ones({1, 1, 1, 1}, a.options()).expand({a.size(0), a.size(1), 1, a.size(3)});
  std::vector<Tensor> rows;
  Tensor row = one;
  for (int64_t i = 0; i < C; i++) {
    if (i > 0) row = at::cat({row * a.narrow(2, i, 1), one}, 2);     // [N, n, i + 1, A]
    rows.push_back(at::constant_pad_nd(row, {0, 0, 0, C - i - 1}));  // [N, n, C, A]
  }
  Within w;
  w.between = at::stack(rows, 2);
  w.before = w.between.select(3, 0) * a.narrow(2, 0, 1);
  w.after = row;
  w.whole = w.before.select(2, C - 1);
  return w;
}

Tensor times(const Tensor& a, const Tensor& factor) { return factor.defined() ? a * factor : a; }

}  // namespace

Scanned decay_chunks_plain(const DecayCall& call, int64_t chunk) {
  const int64_t B = call.q.size(0), H = call.q.size(1), K = call.q.size(3), V = call.v.size(3);
  const bool channels = (call.key.defined() && call.key.size(3) > 1) || call.value.defined();
  const Chunks chunks(call.q.size(2), channels ? std::min<int64_t>(chunk, 16) : chunk);
  const auto cut = [&](const Tensor& t, double fill) { return t.defined() ? chunks.cut(t, fill) : t; };
  const Tensor q = cut(call.scale == 1 ? call.q : call.q * call.scale, 0), k = cut(call.k, 0),
               v = cut(call.v, 0);  // [N, n, C, .], N = B H
  const Within keys = within(cut(call.key, 1)), values = within(cut(call.value, 1));

  // score_ij = sum_a q_ia P_ija k_ja, j <= i
  Tensor score;  // [N, n, C, C]
  if (keys.defined() && keys.between.size(4) > 1) {
    score = at::matmul(keys.between * k.unsqueeze(2), q.unsqueeze(-1)).squeeze(-1);
  } else {
    score = at::matmul(q, k.transpose(-1, -2));
    score = keys.defined() ? score * keys.between.squeeze(-1) : score.tril();
  }
  Tensor out = values.defined()
                   ? at::matmul(score.unsqueeze(-2), values.between * v.unsqueeze(2)).squeeze(-2)  // [N, n, C, V]
                   : at::matmul(score, v);
  const Tensor written = at::matmul(times(k, keys.after).transpose(-1, -2), times(v, values.after));  // [N, n, K, V]

  // State before each chunk, and after the last.
  const Tensor initial = call.state.reshape({B * H, 1, K, V});
  Tensor states;  // [N, n + 1, K, V]
  if (!keys.defined() && !values.defined()) {
    states = at::cat({initial, written}, 1).cumsum(1);
  } else {
    const auto each = [&](const Tensor& t, int64_t unit) {
      return t.defined() ? t.unsqueeze(unit).unbind(1) : std::vector<Tensor>(static_cast<size_t>(chunks.count));
    };
    const std::vector<Tensor> rows = each(keys.whole, -1), columns = each(values.whole, -2), news = written.unbind(1);
    std::vector<Tensor> all{initial.squeeze(1)};
    for (size_t c = 0; c < news.size(); c++) all.push_back(times(times(all.back(), rows[c]), columns[c]) + news[c]);
    states = at::stack(all, 1);
  }
  const Tensor read = at::matmul(times(q, keys.before), states.narrow(1, 0, chunks.count));
  out = out + times(read, values.before);
  return {chunks.join(out, B), states.select(1, chunks.count).reshape({B, H, K, V})};
}

}  // namespace kinfolk
