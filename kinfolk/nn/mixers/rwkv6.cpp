#include "kinfolk/nn/mixers/rwkv6.h"

#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {

Rwkv6::Rwkv6(const Options& options, const Context& context)
    : DecayMixer({options.heads, 1, 1, false, true, "layer", true, 1e-5, options.scale, options.chunk}, context) {
  const int64_t D = context.size.width;
  mix_ = register_parameter("mix", fill_parameter(context, {5, D}, 0.5));
  bonus_ = register_parameter("bonus", draw_parameter(context, {heads_, keys_}, 0.5));
  low_ = register_module("decay_low", std::make_shared<Linear>(context, D, options.rank, false));
  decay_ = register_module("decay", std::make_shared<Linear>(context, options.rank, heads_ * keys_));
  if (decay_->bias.is_meta()) return;
  const at::NoGradGuard guard;  // log decays from -e^-6 to -e^-1 over the channels of a head
  decay_->bias.copy_(at::linspace(-6, -1, keys_, at::kDouble).repeat({heads_}));
}

State Rwkv6::start(int64_t batch, at::TensorOptions like) const {
  State state = DecayMixer::start(batch, like);
  state.tensors[kPast] = at::zeros({batch, mix_.size(1), 1}, state_options(like));
  return state;
}

DecayMixer::Streams Rwkv6::streams(const Tensor& x, Pass& pass, State* state) {
  // The token before, whatever gaps and borders lie between: a convolution whose older tap is 1.
  const Tensor older = at::tensor({1.0, 0.0}, x.options().dtype(mix_.scalar_type())).expand({x.size(2), 2});
  const ShortConved before = short_conv({x, older, {}, carried(state, kPast), false, lanes_of(pass)});
  if (state) state->tensors[kPast] = before.state;
  const Tensor change = before.out - x;  // [B, L, D]
  const auto mixed = [&](int64_t i) { return x + mix_[i] * change; };
  return {mixed(0), mixed(1), mixed(2), mixed(3), mixed(4)};
}

void Rwkv6::prepare(DecayScan& scan, const Tensor& x, Pass&) {
  scan.gate.key = to_heads(decay_->forward(at::tanh(low_->forward(x))).exp().neg(), heads_);  // [B, H, L, K]
  scan.gate.log = true;
  scan.before = true;
  scan.bonus = bonus_;
}

std::string Rwkv6::explain() const { return "one decay a token and key channel, " + DecayMixer::explain(); }

}  // namespace kinfolk
