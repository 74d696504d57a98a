#include "kinfolk/ops/short_conv.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// past [B, W-1+L, D]: state, then tokens; same[j] [B, L, 1]: the token j before is of the same document (may be
/// empty). Returns sum_j weight[:, W-1-j] past[W-1-j+t].
struct Taps : torch::autograd::Function<Taps> {
  static Tensor forward(AutogradContext* ctx, const Tensor& past, const Tensor& weight,
                        const std::optional<Tensor>& document) {
    const Tensor same = document.value_or(Tensor());
    const int64_t W = weight.size(1), L = past.size(1) - W + 1;
    const Tensor taps = weight.t().contiguous();  // [W, D]
    Tensor out = past.narrow(1, W - 1, L) * taps[W - 1];
    for (int64_t j = 1; j < W; j++) {
      const Tensor x = past.narrow(1, W - 1 - j, L);
      out.addcmul_(same.defined() ? x * same[j] : x, taps[W - 1 - j]);
    }
    ctx->save_for_backward({past, weight, same});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[short_conv] expected one derivative; found a request for the second");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &past = saved[0], &weight = saved[1], &same = saved[2], &g = grads[0];
    const int64_t W = weight.size(1), L = past.size(1) - W + 1;
    const Tensor taps = weight.t().contiguous();
    Tensor gpast = at::zeros_like(past), gtaps = at::empty_like(taps);
    for (int64_t j = 0; j < W; j++) {
      const Tensor masked = same.defined() && j > 0 ? g * same[j] : g;
      gpast.narrow(1, W - 1 - j, L).addcmul_(masked, taps[W - 1 - j]);
      gtaps[W - 1 - j].copy_((masked * past.narrow(1, W - 1 - j, L)).sum({0, 1}));
    }
    return {gpast, gtaps.t(), {}};
  }
};

}  // namespace

ShortConved short_conv(const ShortConv& conv) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  if (conv.x.dim() != 3 || conv.weight.dim() != 2 || conv.weight.size(0) != conv.x.size(2) || conv.weight.size(1) < 1) {
    fail("[short_conv] expected x [B, L, D] and weight [D, W]; found ", conv.x.sizes(), ", ", conv.weight.sizes());
  }
  const int64_t B = conv.x.size(0), L = conv.x.size(1), D = conv.x.size(2), W = conv.weight.size(1);
  const at::ScalarType type = scan_type(conv.x);
  Tensor x = conv.x.to(type);
  const Tensor valid = conv.lanes.valid;
  Tensor border = borders(conv.lanes), slot;  // slot [B, L, 1]: where a token stands among the valid ones of its lane
  if (valid.defined()) {
    // Valid tokens to the front, in order: taps then reach over gaps.
    const Tensor order = at::argsort(valid.logical_not().to(at::kByte), true, 1, false);  // [B, L]
    x = x.masked_fill(valid.logical_not().unsqueeze(-1), 0).gather(1, order.unsqueeze(-1).expand({B, L, D}));
    if (border.defined()) border = border.gather(1, order);
    slot = valid.to(at::kLong).cumsum(1).sub_(1).clamp_min_(0).unsqueeze(-1).expand({B, L, D});
  }
  const Tensor before = conv.state.defined() ? conv.state.to(type).transpose(1, 2) : x.new_zeros({B, W - 1, D});
  const Tensor past = at::cat({before, x}, 1);  // [B, W-1+L, D]
  Tensor same, part;
  if (border.defined()) {
    part = at::cat({at::zeros({B, W - 1}, border.options().dtype(at::kLong)), border.to(at::kLong).cumsum(1)}, 1);
    std::vector<Tensor> taps;
    for (int64_t j = 0; j < W; j++) {
      taps.push_back(part.narrow(1, W - 1, L).eq(part.narrow(1, W - 1 - j, L)).to(type).unsqueeze(-1));
    }
    same = at::stack(taps, 0);  // [W, B, L, 1]
  }
  Tensor out = Taps::apply(past, conv.weight.to(type), same.defined() ? std::optional(same) : std::nullopt);
  if (conv.bias.defined()) out = out + conv.bias.to(type);
  if (conv.silu) out = at::silu(out);
  if (valid.defined()) out = out.gather(1, slot).masked_fill(valid.logical_not().unsqueeze(-1), 0);

  // The last W-1 inputs of each lane: those before slot `count`.
  Tensor state;
  if (W == 1 || (!valid.defined() && !border.defined())) {
    state = past.narrow(1, L, W - 1);
  } else {
    const Tensor count = valid.defined() ? valid.to(at::kLong).sum(1, true)
                                         : at::full({B, 1}, L, at::TensorOptions().dtype(at::kLong).device(x.device()));
    const Tensor at_slot = count + at::arange(W - 1, count.options());  // [B, W-1]
    state = past.gather(1, at_slot.unsqueeze(-1).expand({B, W - 1, D}));
    if (border.defined()) {
      const Tensor last = part.gather(1, count + (W - 2));  // document of the newest input
      state = state.masked_fill(part.gather(1, at_slot).ne(last).unsqueeze(-1), 0);
    }
  }
  return {out.to(conv.x.scalar_type()), state.transpose(1, 2)};
}

}  // namespace kinfolk
