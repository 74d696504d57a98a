#include "kinfolk/nn/feed/mlp.h"

namespace kinfolk {

Tensor activate(const std::string& name, const Tensor& x) {
  if (name == "relu") return at::relu(x);
  if (name == "silu") return at::silu(x);
  return at::gelu(x, name == "gelu_tanh" ? "tanh" : "none");
}

Mlp::Mlp(const Options& options, const Context& context)
    : activation_(options.activation), dropout_(options.dropout < 0 ? context.size.dropout : options.dropout) {
  const int64_t width = context.size.width;
  const int64_t hidden = std::max<int64_t>(1, std::llround(options.ratio * static_cast<double>(context.size.feed)));
  in_ = register_module("in", std::make_shared<Linear>(context, width, hidden, options.bias));
  out_ = register_module("out", std::make_shared<Linear>(context, hidden, width, options.bias,
                                                         1 / std::sqrt(2.0 * static_cast<double>(context.size.depth))));
}

Traits Mlp::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.relative = true;
  return traits;
}

double Mlp::flops(int64_t length, int64_t) const { return in_->flops(length) + out_->flops(length); }

Tensor Mlp::forward(const Tensor& x, Pass& pass, State*) {  // [B, L, D]
  const Tensor hidden = activate(activation_, in_->forward(x));
  return out_->forward(dropout(hidden, dropout_, is_training(), pass));
}

std::string Mlp::explain() const { return "linear, " + activation_ + ", linear (torch)"; }

}  // namespace kinfolk
