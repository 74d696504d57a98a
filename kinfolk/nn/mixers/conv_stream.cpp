#include "kinfolk/nn/mixers/conv_stream.h"

#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {
namespace {

/// Fills a parameter with f(u), u uniform in [0, 1).
template <class F>
Tensor spread(const Context& context, int64_t n, F&& f) {
  const Tensor p = fill_parameter(context, {n}, 0);
  if (!p.is_meta()) {
    at::NoGradGuard guard;
    p.copy_(f(at::rand({n}, context.generator, at::TensorOptions().dtype(at::kDouble))));
  }
  return p;
}

}  // namespace

ConvStream::ConvStream(torch::nn::Module& owner, const Context& context, const std::string& name, int64_t rows,
                       int64_t taps)
    : past_(name + "_past"),
      project_(owner.register_module(name, std::make_shared<Linear>(context, context.size.width, rows, false))) {
  if (taps > 0) {
    taps_ = owner.register_parameter(name + "_conv",
                                     draw_parameter(context, {rows, taps}, 1 / std::sqrt(static_cast<double>(taps))));
  }
}

void ConvStream::start(State& state, int64_t batch, at::TensorOptions like) const {
  if (!taps_.defined() || taps_.size(1) < 2) return;
  state.tensors[past_] = at::zeros({batch, taps_.size(0), taps_.size(1) - 1}, state_options(like));
}

double ConvStream::flops(int64_t length) const {
  return project_->flops(length) + (taps_.defined() ? 2 * static_cast<double>(length * taps_.numel()) : 0);
}

Tensor ConvStream::forward(const Tensor& x, const Pass& pass, State* state) const {
  const Tensor in = project_->forward(x);
  if (!taps_.defined()) return at::silu(in);
  const bool reuse = owned(state, past_);
  ShortConv conv{in, taps_, {}, carried(state, past_), true, lanes_of(pass)};
  conv.reuse = reuse;
  const ShortConved done = short_conv(conv);
  if (state && taps_.size(1) > 1) state->tensors[past_] = done.state;
  return done.out;
}

Tensor step_sizes(const Context& context, int64_t n, double least, double most) {
  return spread(context, n, [&](const Tensor& u) {
    const Tensor step = at::exp(std::log(least) + u * (std::log(most) - std::log(least)));
    return step + at::log(-at::expm1(-step));  // the inverse of softplus
  });
}

Tensor log_rates(const Context& context, int64_t n, double most) {
  return spread(context, n, [&](const Tensor& u) { return at::log(1 + u * (most - 1)); });
}

}  // namespace kinfolk
