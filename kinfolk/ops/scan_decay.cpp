#include "kinfolk/ops/scan_decay.h"

#include <c10/core/CPUAllocator.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/scan_decay.h"

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::DecaySizes sizes_of(const Tensor& k, const Tensor& v) { return {k.size(1), k.size(2), k.size(3), v.size(3)}; }

template <class Each>
void over_heads(int64_t heads, const kernels::DecaySizes& sizes, Each&& each) {
  parallel_for(0, heads, 1, [&](int64_t from, int64_t until) {
    const c10::DataPtr scratch =
        c10::GetCPUAllocator()->allocate(static_cast<size_t>(kernels::scan_decay_scratch(sizes)) * sizeof(float));
    for (int64_t head = from; head < until; head++) each(head, static_cast<float*>(scratch.get()));
  });
}

/// q, k [N, n, C, K], v [N, n, C, V], state [N, K, V], N = B H, in the kernel.
struct FusedDecay : torch::autograd::Function<FusedDecay> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& initial) {
    const kernels::DecaySizes z = sizes_of(k, v);
    const int64_t key = z.chunks * z.size * z.keys, value = z.chunks * z.size * z.values, square = z.keys * z.values;
    Tensor state = initial.clone(at::MemoryFormat::Contiguous), out = at::empty_like(v);
    Tensor states = at::empty({v.size(0), z.chunks, z.keys, z.values}, v.options());
    const float *pq = q.const_data_ptr<float>(), *pk = k.const_data_ptr<float>(), *pv = v.const_data_ptr<float>();
    float *ps = state.data_ptr<float>(), *po = out.data_ptr<float>(), *pa = states.data_ptr<float>();
    over_heads(v.size(0), z, [&](int64_t h, float* scratch) {
      kernels::scan_decay_forward(
          z, {pq + h * key, pk + h * key, pv + h * value, ps + h * square, po + h * value, pa + h * z.chunks * square},
          scratch);
    });
    ctx->save_for_backward({q, k, v, states});
    return {out, state};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[scan_decay] expected one derivative; found a request for the second");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &states = saved[3];
    const kernels::DecaySizes z = sizes_of(k, v);
    const int64_t key = z.chunks * z.size * z.keys, value = z.chunks * z.size * z.values, square = z.keys * z.values;
    const Tensor go = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(v);
    Tensor gs = grads[1].defined() ? grads[1].clone(at::MemoryFormat::Contiguous)
                                   : at::zeros({v.size(0), z.keys, z.values}, v.options());
    Tensor gq = at::empty_like(q), gk = at::empty_like(k), gv = at::empty_like(v);
    const float *pq = q.const_data_ptr<float>(), *pk = k.const_data_ptr<float>(), *pv = v.const_data_ptr<float>(),
                *pa = states.const_data_ptr<float>(), *pg = go.const_data_ptr<float>();
    float *ps = gs.data_ptr<float>(), *dq = gq.data_ptr<float>(), *dk = gk.data_ptr<float>(),
          *dv = gv.data_ptr<float>();
    over_heads(v.size(0), z, [&](int64_t h, float* scratch) {
      kernels::scan_decay_backward(z,
                                   {pq + h * key, pk + h * key, pv + h * value, pa + h * z.chunks * square,
                                    pg + h * value, ps + h * square, dq + h * key, dk + h * key, dv + h * value},
                                   scratch);
    });
    return {gq, gk, gv, gs};
  }
};

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
  if (!scan.plain && !r.border.defined() && r.q.is_cpu() &&
      why_not_fused_decay(K, scan.v.size(3), r.q.scalar_type()).empty()) {
    if (chunk < 1) fail("[scan.chunk] expected at least 1; found ", chunk);
    const Chunks chunks =
        Chunks::exactly(r.q.size(2), std::min<int64_t>(64, (std::min(r.q.size(2), chunk) + 15) / 16 * 16));
    const int64_t missing = (16 - V % 16) % 16;  // beside the column of ones
    const auto widen = [&](const Tensor& t) { return missing > 0 ? at::constant_pad_nd(t, {0, missing}) : t; };
    const variable_list done = FusedDecay::apply(chunks.cut(r.q), chunks.cut(r.k), chunks.cut(widen(r.v)),
                                                 widen(r.state).reshape({B * H, K, V + missing}));
    return finish(scan, chunks.join(done[0], B).narrow(-1, 0, V),
                  done[1].reshape({B, H, K, V + missing}).narrow(-1, 0, V));
  }
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

std::string why_not_fused_decay(int64_t keys, int64_t values, at::ScalarType type) {
  if (type != at::kFloat) return "it is not float32";
  if (!kernels::scan_decay_fits({1, 16, keys, values})) {
    return text("head widths ", keys, " and ", values, " are not multiples of 16");
  }
  return "";
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
