#include "kinfolk/ops/short_conv.h"

#include <c10/core/CPUAllocator.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/short_conv.h"

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

/// each(from, until): channels in parts of whole cache lines.
void over_channels(int64_t channels, const std::function<void(int64_t, int64_t)>& each) {
  const int64_t blocks = (channels + 63) / 64;
  parallel_for(0, blocks, 1, [&](int64_t from, int64_t until) { each(from * 64, std::min(until * 64, channels)); });
}

/// x [B, L, D], taps [W, D], bias [D], before [B, W-1, D], without gaps or borders, in the kernel.
struct FusedConv : torch::autograd::Function<FusedConv> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight, const Tensor& given_bias,
                        const Tensor& given_before, bool silu) {
    const Tensor x = input.stride(-1) == 1 || input.size(-1) == 1 ? input : input.contiguous();
    const Tensor taps = weight.contiguous(), bias = given_bias.contiguous(), before = given_before.contiguous();
    Tensor out = at::empty(x.sizes(), x.options());
    const kernels::ShortConvSizes sizes{x.size(1), x.size(2), taps.size(0), silu};
    float* po = out.mutable_data_ptr<float>();
    over_channels(x.size(2), [&](int64_t from, int64_t until) {
      for (int64_t b = 0; b < x.size(0); b++) {
        kernels::short_conv_forward(sizes, lane(x, taps, bias, before, po, b), from, until);
      }
    });
    ctx->save_for_backward({x, taps, bias, before});
    ctx->saved_data["silu"] = silu;
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[short_conv] expected one derivative; found a request for the second");
    const variable_list s = ctx->get_saved_variables();
    const Tensor &x = s[0], &taps = s[1], &bias = s[2], &before = s[3], go = grads[0].contiguous();
    const int64_t L = x.size(1), D = x.size(2), W = taps.size(0);
    const kernels::ShortConvSizes sizes{L, D, W, ctx->saved_data["silu"].toBool()};
    Tensor gx = at::empty(x.sizes(), x.options()), gbefore = at::empty_like(before);
    Tensor gtaps = at::zeros_like(taps), gbias = at::zeros_like(bias);
    const float* pg = go.const_data_ptr<float>();
    float *px = gx.mutable_data_ptr<float>(), *pp = gbefore.mutable_data_ptr<float>(),
          *pt = gtaps.mutable_data_ptr<float>(), *pb = gbias.mutable_data_ptr<float>();
    over_channels(D, [&](int64_t from, int64_t until) {
      const auto floats = static_cast<size_t>(W * (until - from));
      const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(floats * sizeof(float));
      for (int64_t b = 0; b < x.size(0); b++) {
        kernels::short_conv_backward(
            sizes,
            {lane(x, taps, bias, before, nullptr, b), pg + b * L * D, px + b * L * D, pp + b * (W - 1) * D, pt, pb},
            from, until, static_cast<float*>(scratch.get()));
      }
    });
    return {gx, gtaps, gbias, gbefore, {}};
  }
  static kernels::ShortConvForward lane(const Tensor& x, const Tensor& taps, const Tensor& bias, const Tensor& before,
                                        float* out, int64_t b) {
    const int64_t D = x.size(2);
    return {x.const_data_ptr<float>() + b * x.stride(0),
            x.stride(1),
            before.const_data_ptr<float>() + b * (taps.size(0) - 1) * D,
            taps.const_data_ptr<float>(),
            bias.const_data_ptr<float>(),
            out ? out + b * x.size(1) * D : nullptr};
  }
};

bool wants_gradient(const ShortConv& conv) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor& t : {conv.x, conv.weight, conv.bias, conv.state})
    if (t.defined() && t.requires_grad()) return true;
  return false;
}

/// x [B, 1, D] float32, without gaps or borders.
ShortConved one_token(const ShortConv& conv, const Tensor& given) {
  const int64_t B = given.size(0), D = given.size(2), W = conv.weight.size(1);
  const Tensor x = given.stride(2) == 1 || D == 1 ? given : given.contiguous(),
               weight = conv.weight.to(at::kFloat).contiguous(),
               bias = conv.bias.defined() ? conv.bias.to(at::kFloat).contiguous() : Tensor();
  Tensor state = conv.state.defined() ? conv.state.to(at::kFloat) : at::zeros({B, D, W - 1}, x.options());
  const bool copies = state.is_same(conv.state) && !(conv.reuse && state.is_contiguous());
  state = copies ? state.clone(at::MemoryFormat::Contiguous) : state.contiguous();
  Tensor out = at::empty({B, 1, D}, x.options());
  const float *px = x.const_data_ptr<float>(), *pw = weight.const_data_ptr<float>(),
              *pb = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  float *ps = state.mutable_data_ptr<float>(), *po = out.mutable_data_ptr<float>();
  for (int64_t b = 0; b < B; b++) {
    kernels::short_conv_step({D, W, conv.silu, px + b * x.stride(0), pw, pb, ps + b * D * (W - 1), po + b * D});
  }
  return {out.to(conv.x.scalar_type()), state};
}

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
  if (!conv.plain && L == 1 && type == at::kFloat && x.is_cpu() && !valid.defined() && !conv.lanes.first.defined() &&
      !wants_gradient(conv)) {
    return one_token(conv, x);
  }
  Tensor border = borders(conv.lanes), slot;  // slot [B, L, 1]: where a token stands among the valid ones of its lane
  if (valid.defined()) {
    // Valid tokens to the front, in order: taps then reach over gaps.
    const Tensor order = at::argsort(valid.logical_not().to(at::kByte), true, 1, false);  // [B, L]
    x = x.masked_fill(valid.logical_not().unsqueeze(-1), 0).gather(1, order.unsqueeze(-1).expand({B, L, D}));
    if (border.defined()) border = border.gather(1, order);
    slot = valid.to(at::kLong).cumsum(1).sub_(1).clamp_min_(0).unsqueeze(-1).expand({B, L, D});
  }
  if (!conv.plain && !valid.defined() && !border.defined() && type == at::kFloat && x.is_cpu() && L > 0) {
    const Tensor before = conv.state.defined() ? conv.state.to(type).transpose(1, 2) : x.new_zeros({B, W - 1, D});
    const Tensor bias = conv.bias.defined() ? conv.bias.to(type) : x.new_zeros({D});
    const Tensor out = FusedConv::apply(x, conv.weight.to(type).t(), bias, before, conv.silu);
    const Tensor last = L >= W - 1 ? x.narrow(1, L - W + 1, W - 1) : at::cat({before.narrow(1, L, W - 1 - L), x}, 1);
    // A copy: a view would keep the whole sequence alive in the state.
    return {out.to(conv.x.scalar_type()), last.transpose(1, 2).contiguous()};
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
