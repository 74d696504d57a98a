// Mamba: a diagonal recurrence that chooses, token by token, what it keeps.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// x, z = W_in u; x <- silu(conv(x)); r, B, C = W_select x; d = softplus(W_step r + b_step); A = -exp(a_log);
/// h_t = exp(d_t A) h_{t-1} + d_t B_t x_t, y_t = (C_t h_t + skip x_t) silu(z_t); out = W_out y   (Gu and Dao 2023,
/// arXiv 2312.00752). E channels, N states each, r of rank R.
/// Submodules: in (Linear [2 E, D], x then z), select (Linear [R + 2 N, E], r, B, C), step (Linear [E, R], with bias),
/// out (Linear [D, E]); parameters conv [E, W] (last tap: the current token), conv_bias [E], a_log [E, N], skip [E].
/// State: state [B, E, N]; past [B, E, W-1], the last inputs of the convolution, oldest first.
class Mamba : public Branch {
 public:
  struct Options {
    int64_t expand = 0;
    int64_t states = 16;
    int64_t conv = 4;
    int64_t rank = 0;
    std::string discretisation = "euler";
    int64_t chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("expand", expand,
            "channels E as a multiple of the model width; 0: half the size's feed-forward width, so 2 D", at_least(0));
      visit("states", states, "states N of a channel", at_least(1));
      visit("conv", conv, "taps of the short convolution", at_least(1));
      visit("rank", rank, "rank R of the step sizes; 0: a sixteenth of the model width", at_least(0));
      visit("discretisation", discretisation, "of the input: d B x, or exactly (exp(d A) - 1) / A B x",
            one_of({"euler", "zoh"}));
      visit("chunk", chunk, "tokens between two kept states, where no kernel serves", at_least(1));
    }
  };
  static constexpr auto kState = "state";
  static constexpr auto kPast = "past";

  Mamba(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"states"}; }

 private:
  Options options_;
  int64_t channels_, rank_;  // E, R
  std::shared_ptr<Linear> in_, select_, step_, out_;
  Tensor conv_, conv_bias_, a_log_, skip_;
};

}  // namespace kinfolk
