#include "kinfolk/nn/mixers/hgrn.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_decay.h"

namespace kinfolk {

Hgrn::Hgrn(const Options& options, const Context& context) : width_(context.size.width), chunk_(options.chunk) {
  in_ = register_module("in", std::make_shared<Linear>(context, width_, width_, false));
  decay_ = register_module("decay", std::make_shared<Linear>(context, width_, width_));
  swish_ = register_module("swish", std::make_shared<Linear>(context, width_, width_, false));
  if (options.output_norm != "none")
    norm_ = register_module("norm", std::make_shared<Norm>(context, options.output_norm, width_));
  out_ = register_module("out", std::make_shared<Linear>(context, width_, width_, false));
  const double share = (static_cast<double>(context.layer) + 0.1) / static_cast<double>(context.size.depth + 1);
  lower_ = register_parameter("lower", fill_parameter(context, {width_}, std::log(share / (1 - share))));
}

Traits Hgrn::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State Hgrn::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kState] = at::zeros({batch, width_}, state_options(like));
  return state;
}

double Hgrn::flops(int64_t length, int64_t) const {
  return in_->flops(length) + decay_->flops(length) + swish_->flops(length) + out_->flops(length) +
         4 * static_cast<double>(length * width_);
}

Tensor Hgrn::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);  // [B, L, D]
  const Tensor lower = at::sigmoid(lower_);
  const Tensor f = lower + (1 - lower) * at::sigmoid(decay_->forward(x));
  const Tensor u = (1 - f) * at::silu(in_->forward(x));
  // A scan with one key channel that always holds 1.
  const Tensor one = at::ones({1, 1, 1, 1}, u.options()).expand({x.size(0), 1, x.size(1), 1});
  DecayScan scan{one, one, u.unsqueeze(1)};
  scan.gate.value = f.unsqueeze(1);
  if (const Tensor held = carried(state, kState); held.defined()) scan.state = held.view({-1, 1, 1, width_});
  scan.lanes = lanes_of(pass);
  const int64_t length = x.size(1);
  const Form form = choose_form(pass, length, state != nullptr, chunk_);
  const DecayScanned done = form == Form::step
                                ? scan_decay_steps(scan)
                                : scan_decay(scan, form == Form::parallel ? std::max<int64_t>(length, 1) : chunk_);
  if (state) state->tensors[kState] = done.state.flatten(1);
  const Tensor h = done.out.squeeze(1);  // [B, L, D]
  return mask_invalid(out_->forward((norm_ ? norm_->forward(h) : h) * at::silu(swish_->forward(x))), pass);
}

std::string Hgrn::explain() const {
  return text("one decay a token and channel, scan_decay in chunks of ", std::min<int64_t>(16, chunk_),
              ", torch operators, since a kernel has no decays of value channels; step by step with a state");
}

}  // namespace kinfolk
