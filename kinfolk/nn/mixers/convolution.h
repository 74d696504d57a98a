// A short convolution as a branch of its own: the nearest tokens, mixed channel by channel.
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// y_t = act(sum_(j < W) conv[:, W-1-j] x_{t-j} + conv_bias) by channel, causal. Before a mixer it lets every member
/// meet the token before its own alike, as the base convolution of Arora et al. 2023 (Zoology, arXiv 2312.04927).
/// Parameters: conv [D, W], the last tap is the current token; conv_bias [D].
/// State: past [B, D, W-1], the last inputs, oldest first.
class Convolution : public Branch {
 public:
  struct Options {
    int64_t taps = 4;
    std::string activation = "silu";
    template <class V>
    void fields(V&& visit) {
      visit("taps", taps, "tokens W that it reads, its own included", at_least(1));
      visit("activation", activation, "of the result", one_of({"silu", "none"}));
    }
  };
  static constexpr auto kPast = "past";

  Convolution(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;

 private:
  Options options_;
  int64_t width_;
  Tensor conv_, bias_;
};

}  // namespace kinfolk
