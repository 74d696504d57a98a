// RG-LRU: the recurrent block of Griffin, one gated decay a channel.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// x = conv(W_in u + b); r = sigmoid(x W_r + b_r), i = sigmoid(x W_i + b_i), both block-diagonal;
/// log a = -c r softplus(lambda); h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t);
/// y = W_out (h * gelu(W_gate u + b)) + b   (De et al. 2024, arXiv 2402.19427, c = 8). The state starts at zero and the
/// root applies to the first token too; published code sets it to 1 there.
/// Submodules: in, gate (Linear [D, D]), out (Linear [D, D]); parameters conv [D, W] (last tap: the current token),
/// conv_bias [D], recurrent_gate, input_gate [blocks, in, out] (x on the left), recurrent_bias, input_bias
/// [blocks, out], lambda [D].
/// State: state [B, D]; past [B, D, W-1], the last inputs of the convolution, oldest first.
class RgLru : public Branch {
 public:
  struct Options {
    int64_t blocks = 0;
    int64_t conv = 4;
    double c = 8;
    template <class V>
    void fields(V&& visit) {
      visit("blocks", blocks, "blocks of the gates' matrices; 0: the heads of the size", at_least(0));
      visit("conv", conv, "taps of the short convolution", at_least(1));
      visit("c", c, "the decay's exponent at an open gate", at_least(0));
    }
  };
  static constexpr auto kState = "state";
  static constexpr auto kPast = "past";

  RgLru(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"", false, "its state is as wide as the model"}; }

  /// h_t of x [B, L, D] from the carried state.
  Tensor recur(const Tensor& x, Pass& pass, State* state) const;

 private:
  Options options_;
  int64_t width_, blocks_;
  std::shared_ptr<Linear> in_, gate_, out_;
  Tensor conv_, conv_bias_, recurrent_gate_, recurrent_bias_, input_gate_, input_bias_, lambda_;
};

}  // namespace kinfolk
