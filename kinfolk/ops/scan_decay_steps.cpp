// scan_decay token by token in the kernels, one head after another on torch's threads.
#include <c10/core/CPUAllocator.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/scan_decay_steps.h"
#include "kinfolk/ops/scan_decay_chunks.h"

namespace kinfolk {
namespace {

using kernels::DecayStepSizes;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kEvery = 32;  ///< tokens from one kept state to the next

/// The rows of each head of a tensor [B, H, L, n] with a dense last axis.
template <class Float>
struct HeadRows {
  Float* data = nullptr;
  int64_t lane = 0, head = 0, token = 0;
  explicit HeadRows(const Tensor& t) {
    if (!t.defined()) return;
    if constexpr (std::is_const_v<Float>) {
      data = t.const_data_ptr<float>();
    } else {
      data = t.mutable_data_ptr<float>();
    }
    lane = t.stride(0), head = t.stride(1), token = t.stride(2);
  }
  kernels::Rows<Float> operator()(int64_t b, int64_t h) const {
    return {data ? data + b * lane + h * head : nullptr, token};
  }
};
using In = HeadRows<const float>;
using Out = HeadRows<float>;

Tensor dense_last(const Tensor& t) { return !t.defined() || t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous(); }
/// [B, H, L, n] that lies as [B, L, H, n], so that heads join without a copy.
Tensor by_token(const Tensor& like, int64_t n) {
  return at::empty({like.size(0), like.size(2), like.size(1), n}, like.options().requires_grad(false)).transpose(1, 2);
}

/// each(b, h) over all heads.
template <class Each>
void over_heads(int64_t B, int64_t H, Each&& each) {
  if (B * H == 1) return each(0, 0);
  parallel_for(0, B * H, 1, [&](int64_t from, int64_t until) {
    for (int64_t i = from; i < until; i++) each(i / H, i % H);
  });
}

DecayStepSizes sizes_of(const Tensor& q, const Tensor& v, const Tensor& key, double scale) {
  return {q.size(2), q.size(3), v.size(3), key.defined() ? key.size(3) : 0, static_cast<float>(scale), kEvery};
}

/// key [B, H, L, K] or undefined, V a multiple of 16.
struct StepsDecay : torch::autograd::Function<StepsDecay> {
  static variable_list forward(AutogradContext* ctx, const Tensor& given_q, const Tensor& given_k,
                               const Tensor& given_v, const std::optional<Tensor>& given_key, const Tensor& given_value,
                               const Tensor& initial, double scale, bool remember) {
    const Tensor q = dense_last(given_q), k = dense_last(given_k), v = dense_last(given_v),
                 key = dense_last(given_key.value_or(Tensor())), value = dense_last(given_value);
    const DecayStepSizes z = sizes_of(q, v, key, scale);
    const int64_t B = q.size(0), H = q.size(1), square = z.keys * z.values;
    Tensor state = initial.clone(at::MemoryFormat::Contiguous), out = by_token(v, z.values), states;
    if (remember) states = at::empty({B, H, (z.tokens + kEvery - 1) / kEvery, z.keys, z.values}, v.options());
    const In pq(q), pk(k), pv(v), pa(key), pe(value);
    const Out po(out);
    float* ps = state.mutable_data_ptr<float>();
    float* kept = remember ? states.mutable_data_ptr<float>() : nullptr;
    const int64_t each = remember ? states.size(2) * square : 0;
    over_heads(B, H, [&](int64_t b, int64_t h) {
      const int64_t i = b * H + h;
      kernels::scan_decay_steps_forward(z, {pq(b, h), pk(b, h), pv(b, h), pa(b, h), pe(b, h), ps + i * square, po(b, h),
                                            kept ? kept + i * each : nullptr});
    });
    ctx->saved_data["scale"] = scale;
    if (remember) ctx->save_for_backward({q, k, v, key, value, states});
    return {out, state};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[scan_decay] expected one derivative; found a request for the second");
    const variable_list s = ctx->get_saved_variables();
    const Tensor &q = s[0], &k = s[1], &v = s[2], &key = s[3], &value = s[4], &states = s[5];
    const DecayStepSizes z = sizes_of(q, v, key, ctx->saved_data["scale"].toDouble());
    const int64_t B = q.size(0), H = q.size(1), square = z.keys * z.values, each = states.size(2) * square;
    const Tensor go = grads[0].defined() ? dense_last(grads[0]) : at::zeros_like(v);
    Tensor gs = grads[1].defined() ? grads[1].clone(at::MemoryFormat::Contiguous)
                                   : at::zeros({B, H, z.keys, z.values}, v.options());
    Tensor gq = by_token(q, z.keys), gk = by_token(q, z.keys), gv = by_token(q, z.values), ge = by_token(q, z.values);
    Tensor ga = key.defined() ? by_token(q, z.keys) : Tensor();
    const In pq(q), pk(k), pv(v), pa(key), pe(value), pg(go);
    const Out dq(gq), dk(gk), dv(gv), da(ga), de(ge);
    const float* kept = states.const_data_ptr<float>();
    float* ps = gs.mutable_data_ptr<float>();
    over_heads(B, H, [&](int64_t b, int64_t h) {
      const int64_t i = b * H + h;
      const c10::DataPtr scratch =
          c10::GetCPUAllocator()->allocate(static_cast<size_t>(kernels::scan_decay_steps_scratch(z)) * sizeof(float));
      kernels::scan_decay_steps_backward(z,
                                         {pq(b, h), pk(b, h), pv(b, h), pa(b, h), pe(b, h), kept + i * each, pg(b, h),
                                          ps + i * square, dq(b, h), dk(b, h), dv(b, h), da(b, h), de(b, h)},
                                         static_cast<float*>(scratch.get()));
    });
    return {gq, gk, gv, ga, ge, gs, {}, {}};
  }
};

}  // namespace

Scanned decay_steps_fused(const DecayCall& call) {
  const int64_t B = call.q.size(0), H = call.q.size(1), V = call.v.size(3), missing = (16 - V % 16) % 16;
  const auto widen = [&](const Tensor& t) { return missing > 0 ? at::constant_pad_nd(t, {0, missing}) : t; };
  Tensor key = call.key, value = widen(call.value);
  if (key.defined() && key.size(3) == 1) value = value * key, key = Tensor();  // of a token: as one of its values
  const Tensor v = widen(call.v), state = widen(call.state);
  bool remember = false;
  for (const Tensor& t : {call.q, call.k, v, key, value, state}) {
    remember = remember || (t.defined() && t.requires_grad() && at::GradMode::is_enabled());
  }
  const variable_list done =
      StepsDecay::apply(call.q, call.k, v, key.defined() ? std::optional(key) : std::nullopt,
                        value.expand({B, H, call.v.size(2), V + missing}), state, call.scale, remember);
  return {first_of(done[0], 3, V), first_of(done[1], 3, V)};
}

Tensor decay_steps_onto(const DecayCall& call, const Tensor& sum, bool before, const Tensor& bonus, double eps) {
  const Tensor q = dense_last(call.q), k = dense_last(call.k), v = dense_last(call.v), key = dense_last(call.key),
               value = dense_last(call.value), u = bonus.defined() ? bonus.contiguous() : bonus;
  DecayStepSizes z = sizes_of(q, v, key, call.scale);
  z.before = before, z.eps = static_cast<float>(eps);
  const int64_t B = q.size(0), H = q.size(1), K = z.keys, square = K * z.values;
  Tensor out = by_token(v, z.values);
  const In pq(q), pk(k), pv(v), pa(key), pe(value);
  const Out po(out);
  float *ps = call.state.mutable_data_ptr<float>(), *pz = sum.defined() ? sum.mutable_data_ptr<float>() : nullptr;
  const float* pu = u.defined() ? u.const_data_ptr<float>() : nullptr;
  const auto step = [&](int64_t b, int64_t h) {
    const int64_t i = b * H + h;
    kernels::scan_decay_steps_forward(z, {pq(b, h), pk(b, h), pv(b, h), pa(b, h), pe(b, h), ps + i * square, po(b, h),
                                          nullptr, pu ? pu + h * K : nullptr, pz ? pz + i * K : nullptr});
  };
  if (z.tokens * B * H * square < 1 << 18) {  // too little for threads
    for (int64_t i = 0; i < B * H; i++) step(i / H, i % H);
  } else {
    over_heads(B, H, step);
  }
  return out;
}

}  // namespace kinfolk
