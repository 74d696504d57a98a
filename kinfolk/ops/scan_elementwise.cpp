#include "kinfolk/ops/scan_elementwise.h"

#include <ATen/Parallel.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/scan_elementwise.h"
#include "kinfolk/ops/scan_decay.h"

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor dense_last(const Tensor& t) { return t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous(); }
kernels::Rows<const float> lane_of(const Tensor& t, int64_t b) {
  return {t.const_data_ptr<float>() + b * t.stride(0), t.stride(1)};
}
kernels::Rows<float> lane_to(const Tensor& t, int64_t b) {
  return {t.mutable_data_ptr<float>() + b * t.stride(0), t.stride(1)};
}

/// each(b, from, until): lanes, and their channels in parts where there are more threads than lanes.
void over_parts(const Tensor& x, const std::function<void(int64_t, int64_t, int64_t)>& each) {
  const int64_t B = x.size(0), E = x.size(2), blocks = (E + 63) / 64;
  if (x.numel() < 1 << 15) {  // too little for threads
    for (int64_t b = 0; b < B; b++) each(b, 0, E);
    return;
  }
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(blocks, (at::get_num_threads() + B - 1) / B));
  parallel_for(0, B * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t part = i % parts;
      each(i / parts, part * blocks / parts * 64, std::min(E, (part + 1) * blocks / parts * 64));
    }
  });
}

/// Writes the last state over `state`.
Tensor run(const Tensor& x, const Tensor& decay, const Tensor& state) {
  Tensor out = at::empty(x.sizes(), x.options().requires_grad(false));
  const int64_t E = x.size(2);
  float* ps = state.mutable_data_ptr<float>();
  over_parts(x, [&](int64_t b, int64_t from, int64_t until) {
    kernels::scan_elementwise_forward({x.size(1), lane_of(x, b), lane_of(decay, b), ps + b * E, lane_to(out, b)}, from,
                                      until);
  });
  return out;
}

struct FusedElements : torch::autograd::Function<FusedElements> {
  static variable_list forward(AutogradContext* ctx, const Tensor& given, const Tensor& given_decay,
                               const Tensor& initial) {
    const Tensor x = dense_last(given), decay = dense_last(given_decay);
    const Tensor before = initial.contiguous(), state = before.clone();
    const Tensor out = run(x, decay, state);
    ctx->save_for_backward({decay, out, before});
    return {out, state};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[scan_elementwise] expected one derivative; found a request for the second");
    const variable_list s = ctx->get_saved_variables();
    const Tensor &decay = s[0], &out = s[1], &before = s[2];
    const Tensor go = grads[0].defined() ? dense_last(grads[0]) : at::zeros_like(out);
    Tensor gs = grads[1].defined() ? grads[1].clone(at::MemoryFormat::Contiguous) : at::zeros_like(before);
    Tensor gx = at::empty_like(out), ga = at::empty_like(out);
    const int64_t E = out.size(2);
    const float* pb = before.const_data_ptr<float>();
    float* ps = gs.mutable_data_ptr<float>();
    over_parts(out, [&](int64_t b, int64_t from, int64_t until) {
      kernels::scan_elementwise_backward({out.size(1), lane_of(decay, b), lane_of(out, b), lane_of(go, b), pb + b * E,
                                          ps + b * E, lane_to(gx, b), lane_to(ga, b)},
                                         from, until);
    });
    return {gx, ga, gs};
  }
};

}  // namespace

ElementScanned scan_elementwise(const ElementScan& s) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  if (s.x.dim() != 3 || s.decay.sizes() != s.x.sizes()) {
    fail("[scan_elementwise] expected x and decay [B, L, E]; found ", s.x.sizes(), ", ", s.decay.sizes());
  }
  const int64_t B = s.x.size(0), L = s.x.size(1), E = s.x.size(2);
  if (s.state.defined() && s.state.sizes() != at::IntArrayRef{B, E}) {
    fail("[scan_elementwise.state] expected [B, E] = [", B, ", ", E, "]; found ", s.state.sizes());
  }
  const at::ScalarType type = scan_type(s.x);
  if (s.plain || !s.x.is_cpu() || type != at::kFloat) {  // a scan with one key channel that always holds 1
    const Tensor one = at::ones({1, 1, 1, 1}, s.x.options()).expand({B, 1, L, 1});
    DecayScan scan{one, one, s.x.unsqueeze(1)};
    scan.gate.value = s.decay.unsqueeze(1), scan.gate.log = s.log;
    if (s.state.defined()) scan.state = s.state.view({B, 1, 1, E});
    scan.lanes = s.lanes, scan.plain = s.plain;
    const DecayScanned done = scan_decay(scan, 16);
    return {done.out.squeeze(1), done.state.view({B, E})};
  }
  Tensor x = s.x.to(type), decay = s.decay.to(type), gaps;
  if (s.lanes.valid.defined()) {
    gaps = s.lanes.valid.logical_not().unsqueeze(-1);
    x = x.masked_fill(gaps, 0), decay = decay.masked_fill(gaps, s.log ? 0 : 1);
  }
  if (s.log) decay = decay.exp();
  if (const Tensor border = borders(s.lanes); border.defined()) decay = decay.masked_fill(border.unsqueeze(-1), 0);
  Tensor state = s.state.defined() ? s.state.to(type) : at::zeros({B, E}, x.options());
  ElementScanned done;
  if (at::GradMode::is_enabled() && (x.requires_grad() || decay.requires_grad() || state.requires_grad())) {
    const variable_list both = FusedElements::apply(x, decay, state);
    done = {both[0], both[1]};
  } else {
    const bool given = state.is_same(s.state) && !(s.reuse && state.is_contiguous());
    state = given ? state.clone(at::MemoryFormat::Contiguous) : state.contiguous();
    done = {run(dense_last(x), dense_last(decay), state), state};
  }
  if (gaps.defined()) done.out = done.out.masked_fill(gaps, 0);
  done.out = done.out.to(s.x.scalar_type());
  return done;
}

}  // namespace kinfolk
