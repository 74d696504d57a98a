// scan_decay in the kernels: one head after another on torch's threads.
#include <c10/core/CPUAllocator.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/scan_decay.h"
#include "kinfolk/ops/scan_decay_chunks.h"

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::DecaySizes sizes_of(const Tensor& k, const Tensor& v, const Tensor& decay, double scale) {
  const bool channels = decay.defined() && decay.size(-1) > 1;
  return {k.size(1), k.size(2), k.size(3), v.size(3), channels, static_cast<float>(scale)};
}

template <class Each>
void over_heads(int64_t heads, const kernels::DecaySizes& sizes, Each&& each) {
  parallel_for(0, heads, 1, [&](int64_t from, int64_t until) {
    const c10::DataPtr scratch =
        c10::GetCPUAllocator()->allocate(static_cast<size_t>(kernels::scan_decay_scratch(sizes)) * sizeof(float));
    for (int64_t head = from; head < until; head++) each(head, static_cast<float*>(scratch.get()));
  });
}

/// The floats of each head of a tensor [N, ...]; null for an undefined one.
struct Rows {
  float* data = nullptr;
  int64_t step = 0;
  explicit Rows(const Tensor& t) {
    if (t.defined()) data = t.data_ptr<float>(), step = t.numel() / t.size(0);
  }
  float* operator()(int64_t head) const { return data ? data + head * step : nullptr; }
};

/// q, k [N, n, C, K], v [N, n, C, V], decay [N, n, C, 1 or K] or undefined, state [N, K, V], N = B H.
struct FusedDecay : torch::autograd::Function<FusedDecay> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const std::optional<Tensor>& given, const Tensor& initial, double scale, bool remember) {
    const Tensor decay = given.value_or(Tensor());
    const kernels::DecaySizes z = sizes_of(k, v, decay, scale);
    Tensor state = initial.clone(at::MemoryFormat::Contiguous), out = at::empty_like(v), states;
    if (remember) states = at::empty({v.size(0), z.chunks, z.keys, z.values}, v.options());
    const Rows pq(q), pk(k), pv(v), pa(decay), ps(state), po(out), pall(states);
    over_heads(v.size(0), z, [&](int64_t h, float* scratch) {
      kernels::scan_decay_forward(z, {pq(h), pk(h), pv(h), pa(h), ps(h), po(h), pall(h)}, scratch);
    });
    ctx->saved_data["scale"] = scale;
    ctx->save_for_backward({q, k, v, decay, states});
    return {out, state};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[scan_decay] expected one derivative; found a request for the second");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &decay = saved[3], &states = saved[4];
    const kernels::DecaySizes z = sizes_of(k, v, decay, ctx->saved_data["scale"].toDouble());
    const Tensor go = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(v);
    Tensor gs = grads[1].defined() ? grads[1].clone(at::MemoryFormat::Contiguous)
                                   : at::zeros({v.size(0), z.keys, z.values}, v.options());
    Tensor gq = at::empty_like(q), gk = at::empty_like(k), gv = at::empty_like(v);
    Tensor ga = decay.defined() ? at::empty_like(decay) : Tensor();
    const Rows pq(q), pk(k), pv(v), pa(decay), pall(states), pg(go), ps(gs), dq(gq), dk(gk), dv(gv), da(ga);
    over_heads(v.size(0), z, [&](int64_t h, float* scratch) {
      kernels::scan_decay_backward(z, {pq(h), pk(h), pv(h), pa(h), pall(h), pg(h), ps(h), dq(h), dk(h), dv(h), da(h)},
                                   scratch);
    });
    return {gq, gk, gv, ga, gs, {}, {}};
  }
};

}  // namespace

Scanned decay_chunks_fused(const DecayCall& call, int64_t chunk) {
  const int64_t B = call.q.size(0), H = call.q.size(1), L = call.q.size(2), K = call.q.size(3), V = call.v.size(3);
  const Chunks chunks = Chunks::exactly(L, std::min<int64_t>(64, (std::min(L, chunk) + 15) / 16 * 16));
  // Widths that no vector divides get channels that hold nothing.
  const int64_t keys = (16 - K % 16) % 16, values = (16 - V % 16) % 16;
  const auto widen = [](const Tensor& t, int64_t last, int64_t rows = 0) {
    return last + rows > 0 ? at::constant_pad_nd(t, {0, last, 0, rows}) : t;
  };
  Tensor decay = call.key;
  if (decay.defined() && decay.size(3) > 1) decay = widen(decay, keys);
  if (decay.defined()) decay = chunks.cut(decay, 1);
  const Tensor q = chunks.cut(widen(call.q, keys)), k = chunks.cut(widen(call.k, keys)),
               v = chunks.cut(widen(call.v, values)),
               state = widen(call.state, values, keys).reshape({B * H, K + keys, V + values});
  const auto wants = [](const Tensor& t) { return t.defined() && t.requires_grad(); };
  const bool remember =
      at::GradMode::is_enabled() && (wants(q) || wants(k) || wants(v) || wants(decay) || wants(state));
  const variable_list done =
      FusedDecay::apply(q, k, v, decay.defined() ? std::optional(decay) : std::nullopt, state, call.scale, remember);
  const Tensor last = done[1].reshape({B, H, K + keys, V + values});
  return {first_of(chunks.join(done[0], B), 3, V), first_of(first_of(last, 2, K), 3, V)};
}

}  // namespace kinfolk
