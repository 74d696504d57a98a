// A projection with a short convolution behind it, as delta rules have it on q, k and v.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// silu(conv(W x)) by channel, silu(W x) without taps. Registers with its owner: submodule NAME (Linear [R, D], no
/// bias), parameter NAME_conv [R, W], the last tap is the current token. State: NAME_past [B, R, W-1], the last inputs
/// of the convolution, oldest first.
class ConvStream {
 public:
  ConvStream(torch::nn::Module& owner, const Context& context, const std::string& name, int64_t rows, int64_t taps);
  void start(State& state, int64_t batch, at::TensorOptions like) const;
  double flops(int64_t length) const;
  Tensor forward(const Tensor& x, const Pass& pass, State* state) const;  ///< [B, L, D] -> [B, L, R]

 private:
  std::string past_;
  std::shared_ptr<Linear> project_;
  Tensor taps_;
};

/// A parameter [n] whose softplus is spread evenly, by its logarithm, over [least, most]: where step sizes start.
Tensor step_sizes(const Context& context, int64_t n, double least = 1e-3, double most = 1e-1);
/// A parameter [n]: the logarithm of numbers that are spread evenly over [1, most].
Tensor log_rates(const Context& context, int64_t n, double most = 16);

}  // namespace kinfolk
