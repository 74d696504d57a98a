// DeltaNet: a memory that each token corrects.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/mixers/conv_stream.h"
#include "kinfolk/nn/norm.h"

namespace kinfolk {

/// q, k, v = silu(conv(W x)) by channel; q, k <- x / sqrt(sum x^2 + 1e-6) by head; beta = sigmoid(w x) by head;
/// S_t = S_{t-1} + beta_t k_t (v_t - k_t^T S_{t-1})^T, o_t = a q_t S_t, y = W_out rms_norm(o) by head
/// (Schlag et al. 2021; Yang et al. 2024 for the convolution, the norms and the chunks).
/// Submodules: q, k, v, out (Linear [D, D], rows head-major), beta (Linear [H, D]), norm (weight [d]); parameters
/// q_conv, k_conv, v_conv [D, W], the last tap is the current token.
/// State: state [B, H, K, V]; q_past, k_past, v_past [B, D, W-1], the last inputs of the convolutions, oldest first.
class Delta : public Branch {
 public:
  struct Options {
    int64_t heads = 0;
    int64_t conv = 4;
    bool negative = false;
    double scale = 0;
    double eps = 1e-5;
    int64_t chunk = 32;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("conv", conv, "taps of the short convolutions on q, k, v; 0: none", at_least(0));
      visit("negative", negative, "beta in (0, 2), so that a write may reflect (eigenvalues down to -1)");
      visit("scale", scale, "of the queries; 0: 1/sqrt(head width)", at_least(0));
      visit("eps", eps, "of the output norm", at_least(0));
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  static constexpr auto kState = "state";

  Delta(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"heads", true}; }

 private:
  Options options_;
  int64_t heads_, width_;
  std::vector<ConvStream> streams_;  // q, k, v
  std::shared_ptr<Linear> beta_, out_;
  std::shared_ptr<Norm> norm_;
};

/// x / sqrt(sum x^2 + 1e-6) over the last axis: a zero row stays zero, with a finite gradient.
Tensor unit_rows(const Tensor& x);

}  // namespace kinfolk
