#include "kinfolk/nn/mixers/mamba2.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/conv_stream.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_decay.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {

Mamba2::Mamba2(const Options& options, const Context& context)
    : options_(options),
      heads_(options.heads > 0    ? options.heads
             : options.expand > 0 ? options.expand * context.size.heads
                                  : 2 * context.size.heads),
      channels_(options.expand > 0 ? options.expand * context.size.width
                                   : std::max(heads_, context.size.feed / 2 / heads_ * heads_)),
      mixed_(channels_ + 2 * options.groups * options.states) {
  const auto divides = [&](const char* key, int64_t part, const char* what, int64_t whole) {
    if (whole % part != 0) {
      refuse("[", context.path, ".", key, "] expected a divisor of the ", whole, " ", what, "; found ", part);
    }
  };
  divides("heads", heads_, "channels", channels_);
  divides("groups", options.groups, "heads", heads_);
  divides("norm_groups", options.norm_groups, "channels", channels_);
  const int64_t D = context.size.width;
  in_ = register_module("in", std::make_shared<Linear>(context, D, channels_ + mixed_ + heads_, false));
  conv_ = register_parameter(
      "conv", draw_parameter(context, {mixed_, options.conv}, 1 / std::sqrt(3 * static_cast<double>(options.conv))));
  conv_bias_ = register_parameter("conv_bias", fill_parameter(context, {mixed_}, 0));
  rate_log_ = register_parameter("rate_log", log_rates(context, heads_));
  skip_ = register_parameter("skip", fill_parameter(context, {heads_}, 1));
  step_bias_ = register_parameter("step_bias", step_sizes(context, heads_));
  norm_weight_ = register_parameter("norm_weight", fill_parameter(context, {channels_}, 1));
  out_ = register_module("out", std::make_shared<Linear>(context, channels_, D, false));
}

Traits Mamba2::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State Mamba2::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kState] = at::zeros({batch, heads_, options_.states, channels_ / heads_}, state_options(like));
  if (options_.conv > 1) state.tensors[kPast] = at::zeros({batch, mixed_, options_.conv - 1}, state_options(like));
  return state;
}

double Mamba2::flops(int64_t length, int64_t) const {
  const double tokens = static_cast<double>(length);
  return in_->flops(length) + out_->flops(length) + 2 * tokens * static_cast<double>(mixed_ * options_.conv) +
         4 * tokens * static_cast<double>(channels_ * options_.states);
}

Tensor Mamba2::forward(const Tensor& given, Pass& pass, State* state) {
  const int64_t E = channels_, N = options_.states, G = options_.groups;
  const Tensor all = in_->forward(mask_invalid(given, pass));  // [B, L, 2 E + 2 G N + H]
  const bool moves_on = owned(state, kPast);
  ShortConv stream{all.narrow(-1, E, mixed_), conv_, conv_bias_, carried(state, kPast), true, lanes_of(pass)};
  stream.reuse = moves_on;
  const ShortConved conv = short_conv(stream);
  const Tensor x = to_heads(conv.out.narrow(-1, 0, E), heads_);  // [B, H, L, P]
  const auto shared = [&](int64_t from) {                        // [B, H, L, N]
    const Tensor groups = conv.out.narrow(-1, from, G * N).unflatten(-1, {G, N}).transpose(1, 2);
    return groups.repeat_interleave(heads_ / G, 1);
  };
  const Tensor raw = all.narrow(-1, E + mixed_, heads_).to(step_bias_.scalar_type()) + step_bias_;
  const Tensor step = mask_invalid(at::softplus(raw), pass).transpose(1, 2);  // [B, H, L]
  DecayScan scan{shared(E + G * N), shared(E), x * step.unsqueeze(-1).to(x.scalar_type())};
  scan.gate.key = step * -rate_log_.exp().unsqueeze(-1);
  scan.gate.log = true;
  scan.reuse = owned(state, kState);
  scan.state = carried(state, kState);
  scan.lanes = lanes_of(pass);
  const int64_t length = x.size(2);
  const Form form = choose_form(pass, length, state != nullptr, options_.chunk);
  const DecayScanned done =
      form == Form::step ? scan_decay_steps(scan)
                         : scan_decay(scan, form == Form::parallel ? std::max<int64_t>(length, 1) : options_.chunk);
  if (state) {
    state->tensors[kState] = done.state;
    if (options_.conv > 1) state->tensors[kPast] = conv.state;
  }
  const Tensor y = from_heads(done.out + x * skip_.view({-1, 1, 1}));  // [B, L, E]
  const Tensor gated = (y * at::silu(all.narrow(-1, 0, E))).unflatten(-1, {options_.norm_groups, -1});
  const Tensor normed = gated * (gated.square().mean(-1, true) + options_.eps).rsqrt();
  return mask_invalid(out_->forward(normed.flatten(-2) * norm_weight_), pass);
}

std::string Mamba2::explain() const {
  const std::string why = why_not_fused_decay(options_.states, channels_ / heads_,
                                              rate_log_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return text("short_conv and scan_decay with a decay a token and head, in chunks of ", options_.chunk,
              why.empty() ? ", fused but where documents meet" : ", torch operators, since " + why,
              "; step by step with a state");
}

}  // namespace kinfolk
