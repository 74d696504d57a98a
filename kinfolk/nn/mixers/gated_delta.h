// Gated DeltaNet: a memory that each token corrects, after it has let go of some of it.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/mixers/conv_stream.h"
#include "kinfolk/nn/norm.h"

namespace kinfolk {

/// q, k, v = silu(conv(W x)) by channel; q, k <- x / sqrt(sum x^2 + 1e-6) by head; by head beta = sigmoid(w x) and
/// log a = -exp(rate_log) softplus(w' x + step_bias); S_t = a_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,
/// o_t = s q_t S_t, y = W_out (rms_norm(o) * silu(W_swish x)) by head (Yang et al. 2024, arXiv 2412.06464).
/// Submodules: q, k, v, swish, out (Linear [D, D], rows head-major), beta, decay (Linear [H, D]), norm (weight [d]);
/// parameters q_conv, k_conv, v_conv [D, W], rate_log, step_bias [H].
/// State: state [B, H, K, V]; q_past, k_past, v_past [B, D, W-1], the last inputs of the convolutions, oldest first.
class GatedDelta : public Branch {
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

  GatedDelta(const Options& options, const Context& context);
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
  std::shared_ptr<Linear> beta_, decay_, swish_, out_;
  std::shared_ptr<Norm> norm_;
  Tensor rate_log_, step_bias_;
};

}  // namespace kinfolk
