#include "kinfolk/ops/scan_decay.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

// The scan in its own type, scaled and masked, with z as one more value column of ones.
struct Ready {
  Tensor q, k, v, state, border;
};

Ready prepare(const DecayScan& s) {
  if (s.q.dim() != 4 || s.q.sizes() != s.k.sizes() || s.v.dim() != 4 || s.v.size(2) != s.k.size(2)) {
    fail("[scan_decay] expected q, k [B, H, L, K] and v [B, H, L, V]; found ", s.q.sizes(), ", ", s.k.sizes(), ", ",
         s.v.sizes());
  }
  if (s.normalise && !(s.eps > 0)) fail("[scan_decay.eps] expected more than 0; found ", s.eps);
  const at::ScalarType type = scan_type(s.v);
  const int64_t B = s.q.size(0), H = s.q.size(1), K = s.q.size(3), V = s.v.size(3);
  const auto ready = [&](const Tensor& t) { return mask_heads(t.to(type), s.lanes); };
  Ready r{ready(s.q), ready(s.k), ready(s.v), s.state, borders(s.lanes)};
  if (s.scale != 1.0) r.q = r.q * s.scale;
  r.state = r.state.defined() ? r.state.to(type) : at::zeros({B, H, K, V}, r.q.options());
  if (s.normalise) {
    const Tensor sum = s.sum.defined() ? s.sum.to(type) : at::zeros({B, H, K}, r.q.options());
    r.v = at::cat({r.v, at::ones({1, 1, 1, 1}, r.v.options()).expand({B, H, s.v.size(2), 1})}, -1);
    r.state = at::cat({r.state, sum.unsqueeze(-1)}, -1);
  }
  return r;
}

DecayScanned finish(const DecayScan& s, const Tensor& out, const Tensor& state) {
  const int64_t V = s.v.size(3);
  DecayScanned done;
  if (!s.normalise) {
    done.out = out.to(s.v.scalar_type());
    done.state = state;
    return done;
  }
  // Rows of invalid tokens have q = 0: they are 0 / (0 + eps).
  done.out = (out.narrow(-1, 0, V) / (out.narrow(-1, V, 1) + s.eps)).to(s.v.scalar_type());
  done.state = state.narrow(-1, 0, V);
  done.sum = state.select(-1, V);
  return done;
}

}  // namespace

DecayScanned scan_decay(const DecayScan& scan, int64_t chunk) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  const Ready r = prepare(scan);
  const int64_t B = r.q.size(0), H = r.q.size(1), K = r.q.size(3), V = r.v.size(3);
  if (r.q.size(2) == 0) return finish(scan, r.q.new_zeros({B, H, 0, V}), r.state);
  const Chunks chunks(r.q.size(2), chunk);
  const ChunkBorders border = chunk_borders(r.border, chunks, H, r.q.scalar_type());
  const Tensor q = chunks.cut(r.q), k = chunks.cut(r.k), v = chunks.cut(r.v);  // [B H, n, C, .]

  Tensor score = at::matmul(q, k.transpose(-1, -2));  // [B H, n, C, C]
  score = border.defined() ? score * border.same : score.tril();
  Tensor out = at::matmul(score, v);
  const Tensor written = at::matmul((border.defined() ? k * border.last : k).transpose(-1, -2), v);  // [B H, n, K, V]

  // State before each chunk, and after the last.
  const Tensor initial = r.state.reshape({B * H, 1, K, V});
  Tensor states;  // [B H, n + 1, K, V]
  if (!border.defined()) {
    states = at::cat({initial, written}, 1).cumsum(1);
  } else {
    std::vector<Tensor> all{initial.squeeze(1)};
    const std::vector<Tensor> each = written.unbind(1), goes_on = border.whole.unbind(1);
    for (int64_t c = 0; c < chunks.count; c++) all.push_back(all.back() * goes_on[c] + each[c]);
    states = at::stack(all, 1);
  }
  out = out + at::matmul(border.defined() ? q * border.alive : q, states.narrow(1, 0, chunks.count));
  return finish(scan, chunks.join(out, B), states.select(1, chunks.count).reshape({B, H, K, V}));
}

DecayScanned scan_decay_steps(const DecayScan& scan) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  const Ready r = prepare(scan);
  const int64_t B = r.q.size(0), H = r.q.size(1), V = r.v.size(3);
  if (r.q.size(2) == 0) return finish(scan, r.q.new_zeros({B, H, 0, V}), r.state);
  const std::vector<Tensor> q = r.q.unsqueeze(-2).unbind(2), k = r.k.unsqueeze(-1).unbind(2),
                            v = r.v.unsqueeze(-2).unbind(2);
  std::vector<Tensor> out;
  Tensor state = r.state;
  for (size_t t = 0; t < q.size(); t++) {
    if (r.border.defined()) {
      state = state.masked_fill(r.border.select(1, static_cast<int64_t>(t)).view({B, 1, 1, 1}), 0);
    }
    state = state + k[t] * v[t];
    out.push_back(at::matmul(q[t], state).squeeze(-2));  // [B, H, V]
  }
  return finish(scan, at::stack(out, 2), state);
}

}  // namespace kinfolk
