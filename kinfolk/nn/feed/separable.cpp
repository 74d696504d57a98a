#include "kinfolk/nn/feed/separable.h"

#include "kinfolk/ops/short_conv.h"

namespace kinfolk {
namespace {

// Tensors of the state: the last inputs of each filter, [B, channels, kernel - 1].
constexpr auto kFirst = "first", kSecond = "second";

Tensor draw_filter(const Context& context, int64_t channels, int64_t kernel) {
  return draw_parameter(context, {channels, kernel}, 1 / std::sqrt(static_cast<double>(kernel)));
}

}  // namespace

Separable::Separable(const Options& options, const Context& context)
    : dropout_(options.dropout < 0 ? context.size.dropout : options.dropout) {
  const int64_t width = context.size.width;
  const int64_t hidden = std::max<int64_t>(1, std::llround(options.ratio * static_cast<double>(context.size.feed)));
  first_ = register_parameter("first", draw_filter(context, width, options.kernel));
  in_ = register_module("in", std::make_shared<Linear>(context, width, hidden, options.bias));
  if (options.second_kernel > 1) {
    second_ = register_parameter("second", draw_filter(context, hidden, options.second_kernel));
  }
  out_ = register_module("out", std::make_shared<Linear>(context, hidden, width, options.bias,
                                                         1 / std::sqrt(2.0 * static_cast<double>(context.size.depth))));
}

Traits Separable::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.relative = true;
  return traits;
}

State Separable::start(int64_t batch, at::TensorOptions like) const {
  State state;
  // short_conv keeps its state in float32 or wider.
  const auto options = like.dtype(like.dtype() == at::kDouble ? at::kDouble : at::kFloat);
  state.tensors[kFirst] = at::zeros({batch, first_.size(0), first_.size(1) - 1}, options);
  if (second_.defined()) state.tensors[kSecond] = at::zeros({batch, second_.size(0), second_.size(1) - 1}, options);
  return state;
}

double Separable::flops(int64_t length, int64_t) const {
  const double filters = static_cast<double>(first_.numel() + (second_.defined() ? second_.numel() : 0));
  return in_->flops(length) + out_->flops(length) + 2 * static_cast<double>(length) * filters;
}

Tensor Separable::filter(const Tensor& x, const Tensor& weight, const char* name, const Pass& pass,
                         State* state) const {
  ShortConv conv;
  conv.x = x;
  conv.weight = weight;
  conv.lanes = {pass.valid, pass.first};
  if (state) conv.state = state->tensors.at(name);
  const ShortConved filtered = short_conv(conv);
  if (state) state->tensors[name] = filtered.state;
  return filtered.out;
}

Tensor Separable::forward(const Tensor& x, Pass& pass, State* state) {             // [B, L, D]
  Tensor hidden = at::relu(in_->forward(filter(x, first_, kFirst, pass, state)));  // [B, L, F]
  if (second_.defined()) hidden = filter(hidden, second_, kSecond, pass, state);
  return mask_invalid(out_->forward(dropout(hidden, dropout_, is_training(), pass)), pass);
}

}  // namespace kinfolk
