#include "kinfolk/ops/lstm_loop.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Marks {
  Tensor skip;  // bool [L, B, 1]: the state passes through; undefined: nowhere
  Tensor keep;  // [L, B, 1]: 0 before a new document, else 1; undefined: 1
};

/// gates [L, B, 4 N] from the inputs; returns h_t [L, B, N] and the last h, c [B, N].
struct Loop : torch::autograd::Function<Loop> {
  static variable_list forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight, const Tensor& hidden,
                               const Tensor& cell, const Marks& marks) {
    const int64_t L = input.size(0), N = hidden.size(1);
    const Tensor across = weight.t();  // [N, 4 N]
    Tensor gates = at::empty_like(input), out = at::empty({L, hidden.size(0), N}, input.options());
    Tensor before_h = at::empty_like(out), before_c = at::empty_like(out), squashed = at::empty_like(out);
    Tensor h = hidden, c = cell;
    for (int64_t t = 0; t < L; t++) {
      if (marks.keep.defined()) h = h * marks.keep[t], c = c * marks.keep[t];
      Tensor hp = before_h.select(0, t), cp = before_c.select(0, t), g = gates.select(0, t), s = squashed.select(0, t);
      hp.copy_(h);
      cp.copy_(c);
      at::addmm_out(g, input.select(0, t), hp, across);
      g.narrow(1, 0, 2 * N).sigmoid_();
      g.narrow(1, 2 * N, N).tanh_();
      g.narrow(1, 3 * N, N).sigmoid_();
      c = (g.narrow(1, N, N) * cp).addcmul_(g.narrow(1, 0, N), g.narrow(1, 2 * N, N));
      at::tanh_out(s, c);
      h = out.select(0, t);
      at::mul_out(h, g.narrow(1, 3 * N, N), s);
      if (marks.skip.defined()) {
        h = at::where(marks.skip[t], hp, h);
        c = at::where(marks.skip[t], cp, c);
        out.select(0, t).masked_fill_(marks.skip[t], 0);
      }
    }
    ctx->save_for_backward({weight, gates, before_h, before_c, squashed, marks.skip, marks.keep});
    return {out, h.clone(), c.clone()};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
    if (at::GradMode::is_enabled()) fail("[lstm_loop] expected one derivative; found a request for the second");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &weight = saved[0], &gates = saved[1], &before_h = saved[2], &before_c = saved[3], &s = saved[4],
                 &skip = saved[5], &keep = saved[6];
    const int64_t L = gates.size(0), B = gates.size(1), N = s.size(2);
    const Tensor i = gates.narrow(2, 0, N), f = gates.narrow(2, N, N), g = gates.narrow(2, 2 * N, N),
                 o = gates.narrow(2, 3 * N, N);
    // What a unit of gradient in c or h adds to each row block before its non-linearity.
    Tensor by_cell = at::cat({g * i * (1 - i), before_c * f * (1 - f), i * (1 - g * g)}, 2).view({L, B, 3, N});
    Tensor by_hidden = s * o * (1 - o), into_cell = o * (1 - s * s);
    Tensor go = grads[0].defined() ? grads[0] : Tensor();
    if (skip.defined()) {
      by_cell.masked_fill_(skip.unsqueeze(-1), 0);
      by_hidden.masked_fill_(skip, 0);
      into_cell.masked_fill_(skip, 0);
      if (go.defined()) go = go.masked_fill(skip, 0);
    }
    Tensor gh = grads[1].defined() ? grads[1] : at::zeros({B, N}, s.options());
    Tensor gc = grads[2].defined() ? grads[2].clone() : at::zeros({B, N}, s.options());
    Tensor ginput = at::empty_like(gates);
    for (int64_t t = L - 1; t >= 0; t--) {
      if (go.defined()) gh = gh + go.select(0, t);
      Tensor step = ginput.select(0, t);
      gc = at::addcmul(gc, gh, into_cell.select(0, t));
      Tensor cell_rows = step.narrow(1, 0, 3 * N).unflatten(1, {3, N});
      at::mul_out(cell_rows, by_cell.select(0, t), gc.unsqueeze(1));
      Tensor out_rows = step.narrow(1, 3 * N, N);
      at::mul_out(out_rows, gh, by_hidden.select(0, t));
      const Tensor gcp = gc * f.select(0, t);
      if (skip.defined()) {
        gh = at::where(skip[t], gh, at::matmul(step, weight));
        gc = at::where(skip[t], gc, gcp);
      } else {
        gh = at::matmul(step, weight);
        gc = gcp;
      }
      if (keep.defined()) gh = gh * keep[t], gc = gc * keep[t];
    }
    const Tensor gweight = at::matmul(ginput.view({L * B, 4 * N}).t(), before_h.view({L * B, N}));
    return {ginput, gweight, gh, gc, {}};
  }
};

// oneDNN's LSTM, three times faster over a sequence, knows neither gaps nor borders.
bool has_fused(const LstmLoop& run, at::ScalarType type) {
  return type == at::kFloat && run.x.is_cpu() && run.x.size(1) >= 16 && run.x.size(0) > 0 &&
         !run.lanes.valid.defined() && !run.lanes.first.defined() && at::globalContext().hasMKLDNN() &&
         at::globalContext().userEnabledMkldnn();
}

}  // namespace

LstmLooped lstm_loop(const LstmLoop& run) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  if (run.x.dim() != 3 || run.weight_ih.size(1) != run.x.size(2) ||
      run.weight_hh.size(0) != 4 * run.weight_hh.size(1)) {
    fail("[lstm_loop] expected x [B, L, I], weight_ih [4 N, I] and weight_hh [4 N, N]; found ", run.x.sizes(), ", ",
         run.weight_ih.sizes(), ", ", run.weight_hh.sizes());
  }
  const int64_t B = run.x.size(0), L = run.x.size(1), N = run.weight_hh.size(1);
  const at::ScalarType type = scan_type(run.x);
  const auto start = [&](const Tensor& t) {
    return t.defined() ? t.to(type) : at::zeros({B, N}, run.x.options().dtype(type));
  };
  const Tensor hidden = start(run.hidden), cell = start(run.cell);
  if (L == 0) return {run.x.new_zeros({B, 0, N}), hidden, cell};
  if (has_fused(run, type)) {
    const auto [out, h, c] =
        at::lstm(run.x.to(type), {hidden.unsqueeze(0), cell.unsqueeze(0)},
                 {run.weight_ih.to(type), run.weight_hh.to(type), run.bias_ih.to(type), run.bias_hh.to(type)}, true, 1,
                 0.0, at::GradMode::is_enabled(), false, true);
    return {out.to(run.x.scalar_type()), h.squeeze(0), c.squeeze(0)};
  }
  Marks marks;
  Tensor x = run.x.transpose(0, 1).to(type);  // [L, B, I]
  if (run.lanes.valid.defined()) {
    marks.skip = run.lanes.valid.logical_not().t().unsqueeze(-1).contiguous();
    x = x.masked_fill(marks.skip, 0);
  }
  const Tensor border = borders(run.lanes);
  if (border.defined()) marks.keep = border.logical_not().t().unsqueeze(-1).to(type).contiguous();
  const Tensor input = at::linear(x, run.weight_ih.to(type), run.bias_ih.to(type) + run.bias_hh.to(type));
  const variable_list done = Loop::apply(input, run.weight_hh.to(type), hidden, cell, marks);
  return {done[0].transpose(0, 1).to(run.x.scalar_type()), done[1], done[2]};
}

}  // namespace kinfolk
