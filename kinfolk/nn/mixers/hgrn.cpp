#include "kinfolk/nn/mixers/hgrn.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_elementwise.h"

namespace kinfolk {

Hgrn::Hgrn(const Options& options, const Context& context) : width_(context.size.width) {
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
  const bool reuse = owned(state, kState);
  ElementScan scan{u, f, carried(state, kState)};
  scan.lanes = lanes_of(pass);
  scan.reuse = reuse;
  const ElementScanned done = scan_elementwise(scan);
  if (state) state->tensors[kState] = done.state;
  const Tensor h = norm_ ? norm_->forward(done.out) : done.out;  // [B, L, D]
  return mask_invalid(out_->forward(h * at::silu(swish_->forward(x))), pass);
}

std::string Hgrn::explain() const { return "scan_elementwise"; }

}  // namespace kinfolk
