#include "kinfolk/ops/scan_delta.h"

#include <c10/core/CPUAllocator.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/scan_delta.h"
#include "kinfolk/kernels/scan_delta_step.h"

namespace kinfolk {
namespace {
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

Tensor times(const Tensor& a, const Tensor& factor) { return factor.defined() ? a * factor : a; }
Tensor T(const Tensor& a) { return a.transpose(-1, -2); }
Tensor lower(const Tensor& a, const Tensor& same) { return same.defined() ? a * same : a.tril(); }

/// (I + M)^-1 for strictly lower M: blocks of 16 by substitution, then pairs of blocks joined:
/// [A 0; B D]^-1 = [A^-1 0; -D^-1 B A^-1 D^-1].
Tensor unit_lower_inverse(const Tensor& m) {
  const int64_t C = m.size(-1);
  if (C <= 16) {
    Tensor inverse = at::eye(C, m.options()).expand(m.sizes()).clone();
    for (int64_t i = 1; i < C; i++) {
      inverse.narrow(-2, i, 1).narrow(-1, 0, i).copy_(
          at::matmul(m.narrow(-2, i, 1).narrow(-1, 0, i), inverse.narrow(-2, 0, i).narrow(-1, 0, i)).neg_());
    }
    return inverse;
  }
  const int64_t half = (C + 1) / 2, rest = C - half;
  const Tensor a = unit_lower_inverse(m.narrow(-2, 0, half).narrow(-1, 0, half));
  const Tensor d = unit_lower_inverse(m.narrow(-2, half, rest).narrow(-1, half, rest));
  Tensor inverse = at::zeros(m.sizes(), m.options());
  inverse.narrow(-2, 0, half).narrow(-1, 0, half).copy_(a);
  inverse.narrow(-2, half, rest).narrow(-1, half, rest).copy_(d);
  inverse.narrow(-2, half, rest)
      .narrow(-1, 0, half)
      .copy_(at::matmul(d, at::matmul(m.narrow(-2, half, rest).narrow(-1, 0, half), a)).neg_());
  return inverse;
}

/// What is left from token to token of a chunk, as factors: see ChunkBorders; with a decay they lie between 0 and 1.
struct Factors {
  std::optional<Tensor> same, alive, last, whole;
  bool learned = false;  ///< gradients are asked for
};

Factors factors_of(const ChunkBorders& border, const Tensor& log_decay) {
  Factors f;
  if (log_decay.defined()) {  // [N, n, C]
    const int64_t C = log_decay.size(-1);
    // Sums over j < u <= i, not differences of sums from the start: those lose digits.
    const Tensor sums = log_decay.unsqueeze(-1).expand({-1, -1, C, C}).tril(-1).cumsum(-2);
    const Tensor above = at::ones({C, C}, log_decay.options().dtype(at::kBool)).triu(1);
    f.same = sums.masked_fill(above, -INFINITY).exp();
    f.alive = log_decay.cumsum(-1).exp().unsqueeze(-1);
    f.last = f.same->select(-2, C - 1).unsqueeze(-1);
    f.whole = f.alive->narrow(-2, C - 1, 1);
    f.learned = true;
  }
  if (border.defined()) {
    const auto join = [](std::optional<Tensor>& to, const Tensor& b) { to = to ? *to * b : b; };
    join(f.same, border.same);
    join(f.alive, border.alive);
    join(f.last, border.last);
    join(f.whole, border.whole);
  }
  return f;
}

/// q, k [N, n, C, K], v [N, n, C, V], beta [N, n, C, 1], state [N, K, V], N = B H.
/// Returns out [N, n, C, V] and the last state [N, K, V].
struct DeltaChunks : torch::autograd::Function<DeltaChunks> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& beta, const Tensor& state, const std::optional<Tensor>& f_same,
                               const std::optional<Tensor>& f_alive, const std::optional<Tensor>& f_last,
                               const std::optional<Tensor>& f_whole, bool learned) {
    const auto or_none = [](const std::optional<Tensor>& t) { return t ? *t : Tensor(); };
    const Tensor same = or_none(f_same), alive = or_none(f_alive), last = or_none(f_last), whole = or_none(f_whole);
    const int64_t n = q.size(1);
    const Tensor m = lower(at::matmul(k, T(k)), same).tril(-1).mul_(beta);  // [N, n, C, C]
    const Tensor solve = unit_lower_inverse(m);
    const Tensor w = at::matmul(solve, times(k, alive) * beta);  // [N, n, C, K]
    Tensor u = at::matmul(solve, v * beta);                      // [N, n, C, V], less W S below
    const Tensor kept = times(k, last);
    Tensor states = at::empty({q.size(0), n, k.size(3), v.size(3)}, q.options());
    Tensor s = state;
    for (int64_t c = 0; c < n; c++) {
      states.select(1, c).copy_(s);
      Tensor uc = u.select(1, c);
      uc.baddbmm_(w.select(1, c), s, 1, -1);
      s = at::baddbmm(whole.defined() ? s * whole.select(1, c) : s, T(kept.select(1, c)), uc);
    }
    Tensor out = at::matmul(lower(at::matmul(q, T(k)), same), u);
    out.add_(at::matmul(times(q, alive), states));
    ctx->save_for_backward({q, k, v, beta, same, alive, last, whole, solve, w, u, states});
    ctx->saved_data["learned"] = learned;
    return {out, s};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
    if (at::GradMode::is_enabled()) fail("[scan_delta] expected one derivative; found a request for the second");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &beta = saved[3], &same = saved[4], &alive = saved[5],
                 &last = saved[6], &whole = saved[7], &solve = saved[8], &w = saved[9], &u = saved[10],
                 &states = saved[11];
    const int64_t n = q.size(1);
    const Tensor go = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(u);
    Tensor gs = grads[1].defined() ? grads[1] : at::zeros_like(states.select(1, 0));

    const Tensor seen = times(q, alive), kept = times(k, last), read = at::matmul(k, states);
    const Tensor qk = at::matmul(q, T(k)), kk = at::matmul(k, T(k)), score = lower(qk, same);
    Tensor gu = at::matmul(T(score), go);             // [N, n, C, V]
    const Tensor from_out = at::matmul(T(seen), go);  // [N, n, K, V]
    Tensor after = at::empty_like(states);            // gradient of the state after each chunk
    for (int64_t c = n - 1; c >= 0; c--) {
      after.select(1, c).copy_(gs);
      Tensor guc = gu.select(1, c);
      guc.baddbmm_(kept.select(1, c), gs);
      gs = (whole.defined() ? gs * whole.select(1, c) : gs) + from_out.select(1, c);
      gs.baddbmm_(T(w.select(1, c)), guc, 1, -1);
    }
    const Tensor gr = at::matmul(T(solve), gu);  // of R = beta (V - K S)
    const Tensor gv = gr * beta;
    const Tensor gm = at::matmul(gr, T(u)).tril(-1).neg_();  // [N, n, C, C]
    const Tensor gm_same = times(gm, same);
    const Tensor gbeta = (gr * (v - times(read, alive))).sum(-1, true) + (gm_same * kk).sum(-1, true);
    const Tensor gkk = gm_same * beta;
    const Tensor gscore = at::matmul(go, T(u)).tril(), gqk = times(gscore, same);
    const Tensor from_read = at::matmul(go, T(states)), from_kept = at::matmul(u, T(after));  // of seen, of kept
    const Tensor gq = times(from_read, alive) + at::matmul(gqk, k);
    const Tensor gk = times(from_kept, last) - times(at::matmul(gv, T(states)), alive) + at::matmul(T(gqk), q) +
                      at::matmul(gkk + T(gkk), k);
    if (!ctx->saved_data["learned"].toBool()) return {gq, gk, gv, gbeta, gs, {}, {}, {}, {}, {}};
    const Tensor gsame = gm * beta * kk + gscore * qk;
    const Tensor galive = (from_read * q).sum(-1, true) - (gv * read).sum(-1, true);
    const Tensor glast = (from_kept * k).sum(-1, true), gwhole = (after * states).sum({-1, -2}, true);
    return {gq, gk, gv, gbeta, gs, gsame, galive, glast, gwhole, {}};
  }
};

kernels::DeltaSizes sizes_of(const Tensor& k, const Tensor& v) { return {k.size(1), k.size(2), k.size(3), v.size(3)}; }

/// Runs `each(head, scratch)` over the heads on torch's threads. The scratch is aligned to 64 bytes by its allocator.
template <class Each>
void over_heads(int64_t heads, const kernels::DeltaSizes& sizes, Each&& each) {
  parallel_for(0, heads, 1, [&](int64_t from, int64_t until) {
    const c10::DataPtr scratch =
        c10::GetCPUAllocator()->allocate(static_cast<size_t>(kernels::scan_delta_scratch(sizes)) * sizeof(float));
    for (int64_t head = from; head < until; head++) each(head, static_cast<float*>(scratch.get()));
  });
}

/// The same as DeltaChunks without borders, in the kernel; log_decay [N, n, C].
struct FusedDelta : torch::autograd::Function<FusedDelta> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& beta, const Tensor& initial, const std::optional<Tensor>& log_decay) {
    const kernels::DeltaSizes z = sizes_of(k, v);
    const int64_t tokens = z.chunks * z.size, square = z.keys * z.values;
    Tensor state = initial.clone(at::MemoryFormat::Contiguous);
    Tensor out = at::empty_like(v), u = at::empty_like(v);
    Tensor states = at::empty({v.size(0), z.chunks, z.keys, z.values}, v.options());
    const float *pq = q.const_data_ptr<float>(), *pk = k.const_data_ptr<float>(), *pv = v.const_data_ptr<float>(),
                *pb = beta.const_data_ptr<float>(), *pl = log_decay ? log_decay->const_data_ptr<float>() : nullptr;
    float *ps = state.data_ptr<float>(), *po = out.data_ptr<float>(), *pu = u.data_ptr<float>(),
          *pa = states.data_ptr<float>();
    over_heads(v.size(0), z, [&](int64_t h, float* scratch) {
      kernels::scan_delta_forward(z,
                                  {pq + h * tokens * z.keys, pk + h * tokens * z.keys, pv + h * tokens * z.values,
                                   pb + h * tokens, pl ? pl + h * tokens : nullptr, ps + h * square,
                                   po + h * tokens * z.values, pu + h * tokens * z.values, pa + h * z.chunks * square},
                                  scratch);
    });
    ctx->save_for_backward({q, k, v, beta, u, states, log_decay ? *log_decay : Tensor()});
    return {out, state};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[scan_delta] expected one derivative; found a request for the second");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &beta = saved[3], &u = saved[4], &states = saved[5],
                 &log_decay = saved[6];
    const kernels::DeltaSizes z = sizes_of(k, v);
    const int64_t tokens = z.chunks * z.size, square = z.keys * z.values;
    const Tensor go = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(v);
    Tensor gs = grads[1].defined() ? grads[1].clone(at::MemoryFormat::Contiguous)
                                   : at::zeros({v.size(0), z.keys, z.values}, v.options());
    Tensor gq = at::empty_like(q), gk = at::empty_like(k), gv = at::empty_like(v), gb = at::empty_like(beta);
    Tensor gl = log_decay.defined() ? at::empty_like(log_decay) : Tensor();
    const float *pq = q.const_data_ptr<float>(), *pk = k.const_data_ptr<float>(), *pv = v.const_data_ptr<float>(),
                *pb = beta.const_data_ptr<float>(), *pu = u.const_data_ptr<float>(),
                *pa = states.const_data_ptr<float>(), *pg = go.const_data_ptr<float>(),
                *pl = gl.defined() ? log_decay.const_data_ptr<float>() : nullptr;
    float *ps = gs.data_ptr<float>(), *dq = gq.data_ptr<float>(), *dk = gk.data_ptr<float>(),
          *dv = gv.data_ptr<float>(), *db = gb.data_ptr<float>(), *dl = pl ? gl.data_ptr<float>() : nullptr;
    over_heads(v.size(0), z, [&](int64_t h, float* scratch) {
      const int64_t key = h * tokens * z.keys, value = h * tokens * z.values;
      kernels::scan_delta_backward(z,
                                   {pq + key, pk + key, pv + value, pb + h * tokens, pl ? pl + h * tokens : nullptr,
                                    pu + value, pa + h * z.chunks * square, pg + value, ps + h * square, dq + key,
                                    dk + key, dv + value, db + h * tokens, dl ? dl + h * tokens : nullptr},
                                   scratch);
    });
    return {gq, gk, gv, gb, gs, gl};
  }
};

struct Ready {
  Tensor q, k, v, beta, state, border, log_decay;
};

Ready prepare(const DeltaScan& s) {
  if (s.q.dim() != 4 || s.q.sizes() != s.k.sizes() || s.v.dim() != 4 || s.v.size(2) != s.k.size(2) ||
      s.beta.dim() < 3 || s.beta.size(2) != s.k.size(2)) {
    fail("[scan_delta] expected q, k [B, H, L, K], v [B, H, L, V] and beta [B, H, L]; found ", s.q.sizes(), ", ",
         s.k.sizes(), ", ", s.v.sizes(), ", ", s.beta.sizes());
  }
  const at::ScalarType type = scan_type(s.v);
  const auto ready = [&](const Tensor& t) { return mask_heads(t.to(type), s.lanes); };
  Ready r{ready(s.q), ready(s.k), ready(s.v), ready(s.beta), s.state, borders(s.lanes), {}};
  if (s.log_decay.defined()) {
    if (s.log_decay.sizes() != s.k.sizes().slice(0, 3)) {
      fail("[scan_delta] expected log_decay [B, H, L] as k ", s.k.sizes(), "; found ", s.log_decay.sizes());
    }
    r.log_decay = ready(s.log_decay);
  }
  if (s.scale != 1.0) r.q = r.q * s.scale;
  if (r.beta.dim() == 3) r.beta = r.beta.unsqueeze(-1);  // [B, H, L, 1 or V]
  r.state = r.state.defined() ? r.state.to(type)
                              : at::zeros({s.q.size(0), s.q.size(1), s.q.size(3), s.v.size(3)}, r.q.options());
  return r;
}

bool steps_in_kernel(const DeltaScan& s, const Ready& r) {
  if (s.plain || !r.q.is_cpu() || r.q.scalar_type() != at::kFloat) return false;
  if (!at::GradMode::is_enabled()) return true;
  for (const Tensor& t : {r.q, r.k, r.v, r.beta, r.state, r.log_decay}) {
    if (t.defined() && t.requires_grad()) return false;
  }
  return true;
}

Scanned steps_fused(const DeltaScan& s, const Ready& r) {
  const auto rows = [](const Tensor& t) { return t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous(); };
  const Tensor q = rows(r.q), k = rows(r.k), v = rows(r.v), beta = rows(r.beta);
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), K = q.size(3), V = v.size(3);
  // A border forgets all that is before it.
  Tensor decay = r.log_decay.defined() ? r.log_decay.exp() : Tensor();
  if (r.border.defined()) {
    decay = (decay.defined() ? decay : at::ones({B, H, L}, q.options())).masked_fill(r.border.unsqueeze(1), 0);
  }
  const bool copies = r.state.is_same(s.state) && !(s.reuse && r.state.is_contiguous());
  Tensor state = copies ? r.state.clone(at::MemoryFormat::Contiguous) : r.state.contiguous();
  Tensor out = at::empty({B, L, H, V}, q.options());
  const auto at = [](const Tensor& t, int64_t b, int64_t h, int64_t i) {
    return t.const_data_ptr<float>() + b * t.stride(0) + h * t.stride(1) + i * t.stride(2);
  };
  float *ps = state.mutable_data_ptr<float>(), *po = out.mutable_data_ptr<float>();
  for (int64_t b = 0; b < B; b++) {
    for (int64_t h = 0; h < H; h++) {
      for (int64_t i = 0; i < L; i++) {
        kernels::scan_delta_step({K, V, at(q, b, h, i), at(k, b, h, i), at(v, b, h, i), at(beta, b, h, i),
                                  beta.size(3) > 1, decay.defined() ? *at(decay, b, h, i) : 1, 1,
                                  ps + (b * H + h) * K * V, po + ((b * L + i) * H + h) * V});
      }
    }
  }
  return {out.transpose(1, 2).to(s.v.scalar_type()), state};
}

}  // namespace

Scanned scan_delta(const DeltaScan& scan, int64_t chunk) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  Ready r = prepare(scan);
  const int64_t B = r.q.size(0), H = r.q.size(1), L = r.q.size(2), K = r.q.size(3), V = r.v.size(3);
  if (L == 0) return {scan.v.new_zeros({B, H, 0, V}), r.state};
  // One beta for each value channel: every channel is a head of its own with one value.
  const bool each = r.beta.size(3) > 1;
  const int64_t heads = each ? H * V : H, values = each ? 1 : V;
  if (each) {
    const auto spread = [&](const Tensor& t) {
      return t.unsqueeze(2).expand({B, H, V, L, K}).reshape({B, heads, L, K});
    };
    const auto split = [&](const Tensor& t) { return t.transpose(2, 3).reshape({B, heads, L, 1}); };
    r.q = spread(r.q), r.k = spread(r.k), r.v = split(r.v), r.beta = split(r.beta);
    r.state = r.state.transpose(2, 3);
    if (r.log_decay.defined()) r.log_decay = r.log_decay.repeat_interleave(V, 1);
  }
  if (!scan.plain && !r.border.defined() && r.q.is_cpu() && why_not_fused_delta(K, values, r.q.scalar_type()).empty()) {
    if (chunk < 1) fail("[scan.chunk] expected at least 1; found ", chunk);
    const int64_t size = std::min<int64_t>(64, (std::min(L, chunk) + 15) / 16 * 16);
    const Chunks chunks = Chunks::exactly(L, size);
    const auto decay = r.log_decay.defined() ? std::optional(chunks.cut(r.log_decay)) : std::nullopt;
    const variable_list done = FusedDelta::apply(chunks.cut(r.q), chunks.cut(r.k), chunks.cut(r.v), chunks.cut(r.beta),
                                                 r.state.reshape({B * H, K, V}), decay);
    return {chunks.join(done[0], B).to(scan.v.scalar_type()), done[1].reshape({B, H, K, V})};
  }
  const Chunks chunks(L, chunk);
  const ChunkBorders border = chunk_borders(r.border, chunks, heads, r.q.scalar_type());
  const Factors f = factors_of(border, r.log_decay.defined() ? chunks.cut(r.log_decay) : Tensor());
  const variable_list done =
      DeltaChunks::apply(chunks.cut(r.q), chunks.cut(r.k), chunks.cut(r.v), chunks.cut(r.beta),
                         r.state.reshape({B * heads, K, values}), f.same, f.alive, f.last, f.whole, f.learned);
  Tensor out = chunks.join(done[0], B), state = done[1];
  if (each) {
    out = out.reshape({B, H, V, L}).transpose(2, 3);
    state = state.reshape({B, H, V, K}).transpose(2, 3);
  }
  return {out.to(scan.v.scalar_type()), state.reshape({B, H, K, V})};
}

std::string why_not_fused_delta(int64_t keys, int64_t values, at::ScalarType type) {
  if (type != at::kFloat) return "it is not float32";
  if (!kernels::scan_delta_fits({1, 16, keys, values})) {
    return text("head widths ", keys, " and ", values, " are not multiples of 16");
  }
  return "";
}

Scanned scan_delta_steps(const DeltaScan& scan) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  const Ready r = prepare(scan);
  const int64_t B = r.q.size(0), H = r.q.size(1), L = r.q.size(2), V = r.v.size(3);
  if (L == 0) return {scan.v.new_zeros({B, H, 0, V}), r.state};
  if (steps_in_kernel(scan, r)) return steps_fused(scan, r);
  const std::vector<Tensor> q = r.q.unsqueeze(-2).unbind(2), k = r.k.unsqueeze(-1).unbind(2),
                            v = r.v.unsqueeze(-2).unbind(2), beta = r.beta.unsqueeze(-2).unbind(2);
  std::vector<Tensor> out;
  Tensor state = r.state;
  for (int64_t t = 0; t < L; t++) {
    if (r.border.defined()) state = state.masked_fill(r.border.select(1, t).view({B, 1, 1, 1}), 0);
    if (r.log_decay.defined()) state = state * r.log_decay.select(2, t).exp().view({B, H, 1, 1});
    state = state + k[t] * (beta[t] * (v[t] - at::matmul(T(k[t]), state)));
    out.push_back(at::matmul(q[t], state).squeeze(-2));
  }
  return {at::stack(out, 2).to(scan.v.scalar_type()), state};
}

}  // namespace kinfolk
