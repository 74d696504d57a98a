#include "kinfolk/nn/mixers/rg_lru.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_elementwise.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {

RgLru::RgLru(const Options& options, const Context& context)
    : options_(options), width_(context.size.width), blocks_(head_count(options.blocks, context)) {
  const int64_t D = width_, each = D / blocks_;
  const double deviation = 1 / std::sqrt(static_cast<double>(each));
  in_ = register_module("in", std::make_shared<Linear>(context, D, D));
  gate_ = register_module("gate", std::make_shared<Linear>(context, D, D));
  conv_ = register_parameter(
      "conv", draw_parameter(context, {D, options.conv}, 1 / std::sqrt(static_cast<double>(options.conv))));
  conv_bias_ = register_parameter("conv_bias", fill_parameter(context, {D}, 0));
  recurrent_gate_ = register_parameter("recurrent_gate", draw_parameter(context, {blocks_, each, each}, deviation));
  recurrent_bias_ = register_parameter("recurrent_bias", fill_parameter(context, {blocks_, each}, 0));
  input_gate_ = register_parameter("input_gate", draw_parameter(context, {blocks_, each, each}, deviation));
  input_bias_ = register_parameter("input_bias", fill_parameter(context, {blocks_, each}, 0));
  lambda_ = register_parameter("lambda", fill_parameter(context, {D}, 0));
  out_ = register_module("out", std::make_shared<Linear>(context, D, D));
  if (!lambda_.is_meta() && options.c > 0) {  // a^c between 0.9 and 0.999 at an open gate
    const at::NoGradGuard guard;
    const Tensor u = at::rand({D}, context.generator, at::TensorOptions().dtype(at::kDouble));
    const Tensor rate = at::log(0.9 + u * 0.099) / -options.c;
    lambda_.copy_(at::log(at::expm1(rate)));  // the inverse of softplus
  }
}

Traits RgLru::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State RgLru::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kState] = at::zeros({batch, width_}, state_options(like));
  if (options_.conv > 1) state.tensors[kPast] = at::zeros({batch, width_, options_.conv - 1}, state_options(like));
  return state;
}

double RgLru::flops(int64_t length, int64_t) const {
  const double tokens = static_cast<double>(length), gates = static_cast<double>(recurrent_gate_.numel());
  return in_->flops(length) + gate_->flops(length) + out_->flops(length) +
         tokens * (4 * gates + static_cast<double>(width_ * (2 * options_.conv + 4)));
}

Tensor RgLru::recur(const Tensor& x, Pass& pass, State* state) const {
  const auto gate = [&](const Tensor& weight, const Tensor& bias) {
    const Tensor parts = x.unflatten(-1, {blocks_, -1}).unsqueeze(-2);               // [B, L, blocks, 1, in]
    return at::sigmoid((at::matmul(parts, weight).squeeze(-2) + bias).flatten(-2));  // [B, L, D]
  };
  const Tensor log_a = -options_.c * gate(recurrent_gate_, recurrent_bias_) * at::softplus(lambda_);
  // 1 - a^2 without cancellation; the slope of its root has no bound at a = 1.
  const Tensor root = (-at::expm1(2 * log_a)).clamp_min(1e-30).sqrt();
  const Tensor u = root * gate(input_gate_, input_bias_) * x;
  const bool reuse = owned(state, kState);
  ElementScan scan{u, log_a, carried(state, kState)};
  scan.log = true;
  scan.lanes = lanes_of(pass);
  scan.reuse = reuse;
  const ElementScanned done = scan_elementwise(scan);
  if (state) state->tensors[kState] = done.state;
  return done.out;  // [B, L, D]
}

Tensor RgLru::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);  // [B, L, D]
  const bool reuse = owned(state, kPast);
  ShortConv stream{in_->forward(x), conv_, conv_bias_, carried(state, kPast), false, lanes_of(pass)};
  stream.reuse = reuse;
  const ShortConved conv = short_conv(stream);
  if (state && options_.conv > 1) state->tensors[kPast] = conv.state;
  const Tensor h = recur(conv.out, pass, state);
  return mask_invalid(out_->forward(h * at::gelu(gate_->forward(x), "tanh")), pass);
}

std::string RgLru::explain() const { return "short_conv, scan_elementwise"; }

}  // namespace kinfolk
