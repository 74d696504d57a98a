#include "kinfolk/ops/scan_decay.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/scan_decay_chunks.h"

namespace kinfolk {
namespace {

/// [B, 1, L, 1]
Tensor by_token(const Tensor& marks) { return marks.unsqueeze(1).unsqueeze(-1); }

void check(const DecayScan& s) {
  if (s.q.dim() != 4 || s.q.sizes() != s.k.sizes() || s.v.dim() != 4 || s.v.size(2) != s.k.size(2)) {
    fail("[scan_decay] expected q, k [B, H, L, K] and v [B, H, L, V]; found ", s.q.sizes(), ", ", s.k.sizes(), ", ",
         s.v.sizes());
  }
  const int64_t B = s.q.size(0), H = s.q.size(1), L = s.q.size(2), K = s.q.size(3), V = s.v.size(3);
  const Tensor &key = s.gate.key, &value = s.gate.value;
  const auto is = [](const Tensor& t, at::IntArrayRef sizes) { return t.sizes() == sizes; };
  if (key.defined() && !is(key, {H}) && !is(key, {B, H, L}) && !is(key, {B, H, L, K})) {
    fail("[scan_decay.gate.key] expected [H], [B, H, L] or [B, H, L, K] with B, H, L, K = ", s.q.sizes(), "; found ",
         key.sizes());
  }
  if (value.defined() && !is(value, {B, H, L, V})) {
    fail("[scan_decay.gate.value] expected [B, H, L, V] = ", s.v.sizes(), "; found ", value.sizes());
  }
  if (s.normalise && !(s.eps > 0)) fail("[scan_decay.eps] expected more than 0; found ", s.eps);
  if (s.normalise && value.defined()) {
    fail("[scan_decay.normalise] expected false with decays of value channels, whose weights have no common sum; ",
         "found true");
  }
  if (s.bonus.defined() && (!s.before || !is(s.bonus, {H, K}))) {
    fail("[scan_decay.bonus] expected [H, K] = [", H, ", ", K, "] and a read before the step; found ", s.bonus.sizes(),
         s.before ? "" : " and a read after it");
  }
}

/// Decays of one side, 1 at invalid tokens. Logarithms are masked before they are raised, so that what an invalid token
/// holds reaches no gradient.
Tensor decays(const Tensor& given, const DecayScan& s, at::ScalarType type) {
  if (!given.defined()) return {};
  Tensor t = given.to(type);
  if (t.dim() == 1) t = t.view({1, -1, 1}).expand({s.q.size(0), s.q.size(1), s.q.size(2)});
  if (t.dim() == 3) t = t.unsqueeze(-1);
  if (s.lanes.valid.defined()) t = t.masked_fill(by_token(s.lanes.valid.logical_not()), s.gate.log ? 0 : 1);
  return s.gate.log ? t.exp() : t;
}

struct Ready : DecayCall {
  Tensor border;  // bool [B, L]
};

/// The scan in its own type, scaled and masked; `with_sum`: with z as one more value column of ones.
Ready prepare(const DecayScan& s, bool with_sum) {
  check(s);
  const at::ScalarType type = scan_type(s.v);
  const int64_t B = s.q.size(0), H = s.q.size(1), K = s.q.size(3), V = s.v.size(3);
  const auto ready = [&](const Tensor& t) { return mask_heads(t.to(type), s.lanes); };
  Ready r{{ready(s.q), ready(s.k), ready(s.v), s.state, decays(s.gate.key, s, type), decays(s.gate.value, s, type),
           s.scale},
          borders(s.lanes)};
  r.state = r.state.defined() ? r.state.to(type) : at::zeros({B, H, K, V}, r.q.options());
  if (with_sum) {
    const Tensor sum = s.sum.defined() ? s.sum.to(type) : at::zeros({B, H, K}, r.q.options());
    r.v = at::cat({r.v, at::ones({1, 1, 1, 1}, r.v.options()).expand({B, H, s.v.size(2), 1})}, -1);
    r.state = at::cat({r.state, sum.unsqueeze(-1)}, -1);
  }
  return r;
}

/// At a border the state is zero: a decay of 0.
void mark_borders(Ready& r) {
  if (!r.border.defined()) return;
  const Tensor mark = by_token(r.border);
  r.key = r.key.defined() ? r.key.masked_fill(mark, 0)
                          : mark.logical_not().to(r.q.scalar_type()).expand({-1, r.q.size(1), -1, -1});
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

/// q . (u k) v, what a token reads of itself before it is written.
Tensor own_read(const DecayScan& s, const DecayCall& r) {
  const Tensor u = s.bonus.to(r.q.scalar_type()).unsqueeze(1);  // [H, 1, K]
  return (r.q * u * r.k).sum(-1, true) * r.scale * r.v;         // [B, H, L, V]
}

bool steps_in_kernel(const DecayScan& s) {
  if (s.plain || !s.q.is_cpu() || scan_type(s.v) != at::kFloat || s.q.size(2) == 0) return false;
  if (s.normalise && s.bonus.defined()) return false;
  if (s.before && s.lanes.first.defined()) return false;  // a read of a state that a decay of 0 has not reached yet
  if (!at::GradMode::is_enabled()) return true;
  for (const Tensor& t : {s.q, s.k, s.v, s.state, s.sum, s.bonus, s.gate.key, s.gate.value}) {
    if (t.defined() && t.requires_grad()) return false;
  }
  return true;
}

DecayScanned steps_fused(const DecayScan& s) {
  Ready r = prepare(s, false);
  mark_borders(r);
  const auto own = [&](const Tensor& t, const Tensor& given) {  // memory that may be written to
    return t.is_same(given) && (!s.reuse || !t.is_contiguous()) ? t.clone(at::MemoryFormat::Contiguous)
                                                                : t.contiguous();
  };
  r.state = own(r.state, s.state);
  DecayScanned done;
  if (s.normalise) {
    const Tensor sum =
        s.sum.defined() ? s.sum.to(at::kFloat) : at::zeros({r.q.size(0), r.q.size(1), r.q.size(3)}, r.q.options());
    done.sum = own(sum, s.sum);
  }
  const Tensor bonus = s.bonus.defined() ? s.bonus.to(at::kFloat) : Tensor();
  done.out = decay_steps_onto(r, done.sum, s.before, bonus, s.eps).to(s.v.scalar_type());
  done.state = r.state;
  return done;
}

/// A read before step t is a read after step t - 1: queries move one token back, outputs one forth.
Scanned read_before(const Ready& r, const std::function<Scanned(const DecayCall&)>& run) {
  const int64_t L = r.q.size(2);
  const Tensor q = r.border.defined() ? r.q.masked_fill(by_token(r.border), 0) : r.q;
  DecayCall moved = r;
  moved.q = at::constant_pad_nd(q.narrow(2, 1, L - 1), {0, 0, 0, 1});
  const Scanned done = run(moved);
  return {at::cat({at::matmul(q.narrow(2, 0, 1) * r.scale, r.state), done.out.narrow(2, 0, L - 1)}, 2), done.state};
}

}  // namespace

DecayScanned scan_decay(const DecayScan& scan, int64_t chunk) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  if (chunk < 1) fail("[scan.chunk] expected at least 1; found ", chunk);
  Ready r = prepare(scan, scan.normalise);
  if (r.q.size(2) == 0) return finish(scan, r.q.new_zeros({r.q.size(0), r.q.size(1), 0, r.v.size(3)}), r.state);
  mark_borders(r);
  const bool fused =
      !scan.plain && r.q.is_cpu() && why_not_fused_decay(r.q.size(3), r.v.size(3), r.q.scalar_type()).empty();
  const auto run = [&](const DecayCall& call) {
    if (!fused) return decay_chunks_plain(call, chunk);
    return call.value.defined() ? decay_steps_fused(call) : decay_chunks_fused(call, chunk);
  };
  Scanned done = scan.before ? read_before(r, run) : run(r);
  if (scan.bonus.defined()) done.out = done.out + own_read(scan, r);
  return finish(scan, done.out, done.state);
}

std::string why_not_fused_decay(int64_t, int64_t, at::ScalarType type) {
  return type == at::kFloat ? "" : "it is not float32";
}

DecayScanned scan_decay_steps(const DecayScan& scan) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  if (steps_in_kernel(scan)) return steps_fused(scan);
  const Ready r = prepare(scan, scan.normalise);
  const int64_t B = r.q.size(0), H = r.q.size(1), L = r.q.size(2), V = r.v.size(3);
  if (L == 0) return finish(scan, r.q.new_zeros({B, H, 0, V}), r.state);
  const auto each = [&](const Tensor& t, int64_t unit) {  // rows or columns, token by token
    return t.defined() ? t.unsqueeze(unit).unbind(2) : std::vector<Tensor>(static_cast<size_t>(L));
  };
  const std::vector<Tensor> q = each(r.q * r.scale, -2), k = each(r.k, -1), v = each(r.v, -2), key = each(r.key, -1),
                            value = each(r.value, -2);
  std::vector<Tensor> out;
  Tensor state = r.state;  // [B, H, K, V]
  for (size_t t = 0; t < q.size(); t++) {
    if (r.border.defined()) {
      state = state.masked_fill(r.border.select(1, static_cast<int64_t>(t)).view({B, 1, 1, 1}), 0);
    }
    if (scan.before) out.push_back(at::matmul(q[t], state).squeeze(-2));  // [B, H, V]
    if (key[t].defined()) state = key[t] * state;
    if (value[t].defined()) state = state * value[t];
    state = state + k[t] * v[t];
    if (!scan.before) out.push_back(at::matmul(q[t], state).squeeze(-2));
  }
  Tensor all = at::stack(out, 2);
  if (scan.bonus.defined()) all = all + own_read(scan, r);
  return finish(scan, all, state);
}

}  // namespace kinfolk
