// Mamba-2: the selective recurrence with one decay a head, as products of matrices.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// z, x, B, C, r = W_in u; x, B, C <- silu(conv(x, B, C)); by head d = softplus(r + step_bias), A = -exp(rate_log);
/// S_t = exp(d_t A) S_{t-1} + B_t (d_t x_t)^T, y_t = C_t S_t + skip x_t; out = W_out (rms(y * silu(z)) * weight)
/// (Dao and Gu 2024, arXiv 2405.21060). E = expand D channels in H heads of P, N states each; head h reads B and C of
/// group floor(h G / H). The norm is over all channels, or by group where norm_groups says so: the two published codes
/// differ there.
/// Submodules: in (Linear [2 E + 2 G N + H, D], rows z, x, B, C, r), out (Linear [D, E]); parameters
/// conv [E + 2 G N, W] (last tap: the current token), conv_bias, rate_log, skip, step_bias [H], norm_weight [E].
/// State: state [B, H, N, P]; past [B, E + 2 G N, W-1], the last inputs of the convolution, oldest first.
class Mamba2 : public Branch {
 public:
  struct Options {
    int64_t expand = 0;
    int64_t heads = 0;
    int64_t states = 64;
    int64_t groups = 1;
    int64_t norm_groups = 1;
    int64_t conv = 4;
    double eps = 1e-5;
    int64_t chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit(
          "expand", expand,
          "channels E as a multiple of the model width; 0: half the size's feed-forward width, so 2 D, in whole heads",
          at_least(0));
      visit("heads", heads, "heads H; 0: twice those of the size, or expand times", at_least(0));
      visit("states", states, "states N of a channel", at_least(1));
      visit("groups", groups, "groups G of heads that share B and C", at_least(1));
      visit("norm_groups", norm_groups, "parts of the channels that are normalised by themselves", at_least(1));
      visit("conv", conv, "taps of the short convolution", at_least(1));
      visit("eps", eps, "of the output norm", at_least(0));
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  static constexpr auto kState = "state";
  static constexpr auto kPast = "past";

  Mamba2(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"states"}; }

 private:
  Options options_;
  int64_t heads_, channels_, mixed_;  // H, E, E + 2 G N
  std::shared_ptr<Linear> in_, out_;
  Tensor conv_, conv_bias_, rate_log_, skip_, step_bias_, norm_weight_;
};

}  // namespace kinfolk
