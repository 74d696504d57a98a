#include "kinfolk/nn/feed/glu.h"

#include "kinfolk/nn/feed/mlp.h"

namespace kinfolk {

Glu::Glu(const Options& options, const Context& context)
    : activation_(options.activation), dropout_(options.dropout < 0 ? context.size.dropout : options.dropout) {
  const int64_t width = context.size.width;
  const double wanted = options.ratio * static_cast<double>(context.size.feed) * 2 / 3;
  const int64_t hidden = std::max<int64_t>(1, std::llround(wanted));
  gate_ = register_module("gate", std::make_shared<Linear>(context, width, hidden, options.bias));
  in_ = register_module("in", std::make_shared<Linear>(context, width, hidden, options.bias));
  out_ = register_module("out", std::make_shared<Linear>(context, hidden, width, options.bias,
                                                         1 / std::sqrt(2.0 * static_cast<double>(context.size.depth))));
}

Traits Glu::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.relative = true;
  return traits;
}

double Glu::flops(int64_t length, int64_t) const {
  return gate_->flops(length) + in_->flops(length) + out_->flops(length);
}

Tensor Glu::forward(const Tensor& x, Pass& pass, State*) {  // [B, L, D]
  const Tensor hidden = activate(activation_, gate_->forward(x)) * in_->forward(x);
  return out_->forward(dropout(hidden, dropout_, is_training(), pass));
}

std::string Glu::explain() const { return "linear, " + activation_ + " gate, linear (torch)"; }

}  // namespace kinfolk
