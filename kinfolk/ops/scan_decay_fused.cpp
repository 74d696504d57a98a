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

/// The floats of each head of a tensor [N, ...]; null for an undefined one.
struct Rows {
  float* data = nullptr;
  int64_t step = 0;
  explicit Rows(const Tensor& t) {
    if (t.defined()) data = t.data_ptr<float>(), step = t.numel() / t.size(0);
  }
  float* operator()(int64_t head) const { return data ? data + head * step : nullptr; }
};

/// How a head's tokens fall into chunks: whole ones where they lie, and what is left in a copy that is filled up.
struct Cut {
  kernels::DecaySizes z;  // of one chunk
  int64_t whole, rest;
  int64_t decays;  // numbers of a token: 0, 1 or K

  Cut(const Tensor& k, const Tensor& v, const Tensor& decay, double scale, int64_t size)
      : z{1, size, k.size(2), v.size(2), decay.defined() && decay.size(2) > 1, static_cast<float>(scale)},
        whole(k.size(1) / size),
        rest(k.size(1) % size),
        decays(decay.defined() ? decay.size(2) : 0) {}
  int64_t chunks() const { return whole + (rest > 0); }
  kernels::DecaySizes sizes(int64_t chunks) const {
    kernels::DecaySizes all = z;
    all.chunks = chunks;
    return all;
  }
  template <class Each>
  void over_heads(int64_t heads, Each&& each) const {
    const int64_t floats = kernels::scan_decay_scratch(z) + z.size * (4 * z.keys + 3 * z.values + 2 * decays);
    parallel_for(0, heads, 1, [&](int64_t from, int64_t until) {
      const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(static_cast<size_t>(floats) * sizeof(float));
      for (int64_t head = from; head < until; head++) each(head, static_cast<float*>(scratch.get()));
    });
  }
};

/// Copies of the rows beyond the whole chunks, filled up to a chunk of tokens that change nothing.
struct Rest {
  const Cut& cut;
  float* free;

  float* room(int64_t width) {
    float* here = free;
    free += cut.z.size * width;
    return here;
  }
  float* in(const float* head, int64_t width, float fill = 0) {
    if (!head) return nullptr;
    float* here = room(width);
    std::copy_n(head + cut.whole * cut.z.size * width, cut.rest * width, here);
    std::fill(here + cut.rest * width, here + cut.z.size * width, fill);
    return here;
  }
  void out(const float* here, float* head, int64_t width) const {
    if (head) std::copy_n(here, cut.rest * width, head + cut.whole * cut.z.size * width);
  }
};

/// q, k [N, L, K], v [N, L, V], decay [N, L, 1 or K] or undefined, state [N, K, V], N = B H; chunks of `size` tokens.
struct FusedDecay : torch::autograd::Function<FusedDecay> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const std::optional<Tensor>& given, const Tensor& initial, double scale, int64_t size,
                               bool remember) {
    const Tensor decay = given.value_or(Tensor());
    const Cut cut(k, v, decay, scale, size);
    const int64_t K = cut.z.keys, V = cut.z.values, square = K * V;
    Tensor state = initial.clone(at::MemoryFormat::Contiguous), out = at::empty_like(v), states;
    if (remember) states = at::empty({v.size(0), cut.chunks(), K, V}, v.options());
    const Rows pq(q), pk(k), pv(v), pa(decay), ps(state), po(out), pall(states);
    cut.over_heads(v.size(0), [&](int64_t h, float* scratch) {
      kernels::scan_decay_forward(cut.sizes(cut.whole), {pq(h), pk(h), pv(h), pa(h), ps(h), po(h), pall(h)}, scratch);
      if (cut.rest == 0) return;
      Rest rest{cut, scratch + kernels::scan_decay_scratch(cut.z)};
      float* o = rest.room(V);
      kernels::scan_decay_forward(
          cut.z,
          {rest.in(pq(h), K), rest.in(pk(h), K), rest.in(pv(h), V), rest.in(pa(h), cut.decays, 1), ps(h), o,
           remember ? pall(h) + cut.whole * square : nullptr},
          scratch);
      rest.out(o, po(h), V);
    });
    ctx->saved_data["scale"] = scale, ctx->saved_data["size"] = size;
    ctx->save_for_backward({q, k, v, decay, states});
    return {out, state};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[scan_decay] expected one derivative; found a request for the second");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &decay = saved[3], &states = saved[4];
    const Cut cut(k, v, decay, ctx->saved_data["scale"].toDouble(), ctx->saved_data["size"].toInt());
    const int64_t K = cut.z.keys, V = cut.z.values, square = K * V;
    const Tensor go = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(v);
    Tensor gs =
        grads[1].defined() ? grads[1].clone(at::MemoryFormat::Contiguous) : at::zeros({v.size(0), K, V}, v.options());
    Tensor gq = at::empty_like(q), gk = at::empty_like(k), gv = at::empty_like(v);
    Tensor ga = decay.defined() ? at::empty_like(decay) : Tensor();
    const Rows pq(q), pk(k), pv(v), pa(decay), pall(states), pg(go), ps(gs), dq(gq), dk(gk), dv(gv), da(ga);
    cut.over_heads(v.size(0), [&](int64_t h, float* scratch) {
      if (cut.rest > 0) {
        Rest rest{cut, scratch + kernels::scan_decay_scratch(cut.z)};
        float *rq = rest.room(K), *rk = rest.room(K), *rv = rest.room(V), *ra = rest.room(cut.decays);
        kernels::scan_decay_backward(
            cut.z,
            {rest.in(pq(h), K), rest.in(pk(h), K), rest.in(pv(h), V), rest.in(pa(h), cut.decays, 1),
             pall(h) + cut.whole * square, rest.in(pg(h), V), ps(h), rq, rk, rv, da(h) ? ra : nullptr},
            scratch);
        rest.out(rq, dq(h), K), rest.out(rk, dk(h), K), rest.out(rv, dv(h), V), rest.out(ra, da(h), cut.decays);
      }
      kernels::scan_decay_backward(cut.sizes(cut.whole),
                                   {pq(h), pk(h), pv(h), pa(h), pall(h), pg(h), ps(h), dq(h), dk(h), dv(h), da(h)},
                                   scratch);
    });
    return {gq, gk, gv, ga, gs, {}, {}, {}};
  }
};

}  // namespace

Scanned decay_chunks_fused(const DecayCall& call, int64_t chunk) {
  const int64_t B = call.q.size(0), H = call.q.size(1), L = call.q.size(2), K = call.q.size(3), V = call.v.size(3);
  const int64_t size = std::min<int64_t>(64, (std::min(L, chunk) + 15) / 16 * 16);
  // Widths that no vector divides get channels that hold nothing.
  const int64_t keys = (16 - K % 16) % 16, values = (16 - V % 16) % 16;
  const auto widen = [](const Tensor& t, int64_t last, int64_t rows = 0) {
    return last + rows > 0 ? at::constant_pad_nd(t, {0, last, 0, rows}) : t;
  };
  const auto by_head = [&](const Tensor& t) { return t.reshape({B * H, t.size(2), t.size(3)}).contiguous(); };
  Tensor decay = call.key;
  if (decay.defined() && decay.size(3) > 1) decay = widen(decay, keys);
  if (decay.defined()) decay = by_head(decay);
  const Tensor q = by_head(widen(call.q, keys)), k = by_head(widen(call.k, keys)), v = by_head(widen(call.v, values)),
               state = by_head(widen(call.state, values, keys));
  const auto wants = [](const Tensor& t) { return t.defined() && t.requires_grad(); };
  const bool remember =
      at::GradMode::is_enabled() && (wants(q) || wants(k) || wants(v) || wants(decay) || wants(state));
  const variable_list done = FusedDecay::apply(q, k, v, decay.defined() ? std::optional(decay) : std::nullopt, state,
                                               call.scale, size, remember);
  const Tensor last = done[1].reshape({B, H, K + keys, V + values});
  return {first_of(done[0].reshape({B, H, L, V + values}), 3, V), first_of(first_of(last, 2, K), 3, V)};
}

}  // namespace kinfolk
