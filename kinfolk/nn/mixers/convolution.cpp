#include "kinfolk/nn/mixers/convolution.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {

Convolution::Convolution(const Options& options, const Context& context)
    : options_(options), width_(context.size.width) {
  const double deviation = 1 / std::sqrt(static_cast<double>(options.taps));
  conv_ = register_parameter("conv", draw_parameter(context, {width_, options.taps}, deviation));
  bias_ = register_parameter("conv_bias", fill_parameter(context, {width_}, 0));
}

Traits Convolution::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State Convolution::start(int64_t batch, at::TensorOptions like) const {
  State state;
  if (options_.taps > 1) state.tensors[kPast] = at::zeros({batch, width_, options_.taps - 1}, state_options(like));
  return state;
}

double Convolution::flops(int64_t length, int64_t) const {
  return 2 * static_cast<double>(length) * static_cast<double>(width_ * options_.taps);
}

Tensor Convolution::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);  // [B, L, D]
  const bool reuse = owned(state, kPast);
  ShortConv stream{x, conv_, bias_, carried(state, kPast), options_.activation == "silu", lanes_of(pass)};
  stream.reuse = reuse;
  const ShortConved done = short_conv(stream);
  if (state && options_.taps > 1) state->tensors[kPast] = done.state;
  return mask_invalid(done.out, pass);
}

std::string Convolution::explain() const { return text("short_conv over ", options_.taps, " tokens"); }

}  // namespace kinfolk
