#include "kinfolk/ops/scan_selective_chunks.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor quotient(const Tensor& w) {
  const Tensor safe = w.masked_fill(w.eq(0), 1);
  return at::where(w.eq(0), at::ones({}, w.options()), at::expm1(safe) / safe);
}
/// d phi / dw = (e^w - phi) / w, by its series near 0.
Tensor quotient_slope(const Tensor& w, const Tensor& phi) {
  const Tensor near = w.abs().lt(0.1), safe = w.masked_fill(near, 1);
  Tensor series = at::full_like(w, 10.0 / 39916800);
  for (const double term :
       {9.0 / 3628800, 8.0 / 362880, 7.0 / 40320, 6.0 / 5040, 5.0 / 720, 4.0 / 120, 3.0 / 24, 2.0 / 6, 1.0 / 2}) {
    series = series * w + term;
  }
  return at::where(near, series, (safe.exp() - phi) / safe);
}

struct Quotient : torch::autograd::Function<Quotient> {
  static Tensor forward(AutogradContext* ctx, const Tensor& w) {
    ctx->save_for_backward({w});
    return quotient(w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor w = ctx->get_saved_variables()[0];
    return {grads[0] * quotient_slope(w, quotient(w))};
  }
};

/// One chunk of the scan, with all its states.
struct Replayed {
  Tensor step, x, b, c;              // of these tokens
  Tensor power, decay, phi, states;  // [B, C, E, N]; `states` holds those after each token

  Replayed(const SelectiveCore& core, int64_t from, int64_t count, const Tensor& state) {
    const auto part = [&](const Tensor& t) { return t.narrow(1, from, count); };
    step = part(core.step), x = part(core.x), b = part(core.b).unsqueeze(2), c = part(core.c).unsqueeze(2);
    power = step.unsqueeze(-1) * core.a;
    decay = power.exp();
    states = (step * x).unsqueeze(-1) * b;
    if (core.zoh) states.mul_(phi = quotient(power));
    if (core.goes_on.defined()) decay = decay * part(core.goes_on).unsqueeze(-1).unsqueeze(-1);
    Tensor before = state;
    for (int64_t t = 0; t < count; t++) {
      Tensor h = states.select(1, t);
      h.addcmul_(decay.select(1, t), before);
      before = h;
    }
  }
  Tensor last() const { return states.select(1, states.size(1) - 1).clone(); }
};

struct SelectiveChunks : torch::autograd::Function<SelectiveChunks> {
  static variable_list forward(AutogradContext* ctx, const Tensor& step, const Tensor& x, const Tensor& a,
                               const Tensor& b, const Tensor& c, const Tensor& state,
                               const std::optional<Tensor>& goes_on, bool zoh, int64_t chunk) {
    const SelectiveCore core{step, x, a, b, c, state, goes_on ? *goes_on : Tensor(), zoh};
    const int64_t L = x.size(1);
    Tensor y = at::empty(x.sizes(), x.options()), h = state;
    std::vector<Tensor> kept;
    for (int64_t from = 0; from < L; from += chunk) {
      const int64_t count = std::min(chunk, L - from);
      kept.push_back(h);
      const Replayed part(core, from, count, h);
      Tensor into = y.narrow(1, from, count);
      at::sum_out(into, part.states * part.c, {-1});
      h = part.last();
    }
    ctx->save_for_backward({step, x, a, b, c, core.goes_on, at::stack(kept, 0)});
    ctx->saved_data["zoh"] = zoh;
    ctx->saved_data["chunk"] = chunk;
    return {y, h};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
    if (at::GradMode::is_enabled()) fail("[scan_selective] expected one derivative; found a request for the second");
    const variable_list s = ctx->get_saved_variables();
    const bool zoh = ctx->saved_data["zoh"].toBool();
    const int64_t chunk = ctx->saved_data["chunk"].toInt(), L = s[1].size(1);
    const SelectiveCore core{s[0], s[1], s[2], s[3], s[4], s[6][0], s[5], zoh};
    const Tensor gy = grads[0].defined() ? grads[0] : at::zeros_like(core.x);
    Tensor carry = grads[1].defined() ? grads[1] : at::zeros_like(core.state);
    Tensor gstep = at::empty_like(core.step), gx = at::empty_like(core.x), ga = at::zeros_like(core.a);
    Tensor gb = at::empty_like(core.b), gc = at::empty_like(core.c);
    for (int64_t from = (L - 1) / chunk * chunk; from >= 0; from -= chunk) {
      const int64_t count = std::min(chunk, L - from);
      const Tensor start = s[6][from / chunk];
      const Replayed part(core, from, count, start);
      const Tensor gout = gy.narrow(1, from, count).unsqueeze(-1);  // [B, C, E, 1]
      gc.narrow(1, from, count).copy_((gout * part.states).sum(2));
      Tensor g = gout * part.c;  // of each state
      for (int64_t t = count - 1; t >= 0; t--) {
        g.select(1, t).add_(carry);
        carry = g.select(1, t) * part.decay.select(1, t);
      }
      const Tensor before = at::cat({start.unsqueeze(1), part.states.narrow(1, 0, count - 1)}, 1);
      Tensor gpower = g * part.decay * before;
      const Tensor weighed = g * part.b, input = (part.step * part.x).unsqueeze(-1);
      const Tensor ginput = (zoh ? weighed * part.phi : weighed).sum(-1);  // of d x
      gb.narrow(1, from, count).copy_(((zoh ? g * part.phi : g) * input).sum(2));
      if (zoh) gpower = gpower + weighed * input * quotient_slope(part.power, part.phi);
      gx.narrow(1, from, count).copy_(ginput * part.step);
      gstep.narrow(1, from, count).copy_((gpower * core.a).sum(-1) + ginput * part.x);
      ga.add_((gpower * part.step.unsqueeze(-1)).sum({0, 1}));
    }
    return {gstep, gx, ga, gb, gc, carry, {}, {}, {}};
  }
};

}  // namespace

Tensor selective_quotient(const Tensor& w) { return Quotient::apply(w); }

Scanned scan_selective_chunks(const SelectiveCore& core, int64_t chunk) {
  const auto goes_on = core.goes_on.defined() ? std::optional(core.goes_on) : std::nullopt;
  const variable_list done = SelectiveChunks::apply(core.step, core.x, core.a, core.b, core.c, core.state, goes_on,
                                                    core.zoh, std::min(chunk, core.x.size(1)));
  return {done[0], done[1]};
}

}  // namespace kinfolk
