// HGRN: a gated sum, channel by channel, without a matrix state.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/norm.h"

namespace kinfolk {

/// h_t = f_t h_{t-1} + (1 - f_t) silu(W_in x_t), f_t = l + (1 - l) sigmoid(W_f x_t + b_f) with a lower bound l a
/// channel; y_t = W_out (norm(h_t) * silu(W_swish x_t))   (Qin et al. 2023, arXiv 2311.04823, the real-valued form).
/// The article ties the bounds of all layers; here each layer learns its own, l = sigmoid(lower), and layer i of n
/// starts at i / n. Submodules: in, decay, swish, out (Linear [D, D], decay with a bias), norm; parameter lower [D].
/// State: state [B, D].
class Hgrn : public Branch {
 public:
  struct Options {
    std::string output_norm = "rms";
    template <class V>
    void fields(V&& visit) {
      visit("output_norm", output_norm, "of the state that is read", one_of({"none", "rms", "layer"}));
    }
  };
  static constexpr auto kState = "state";

  Hgrn(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"", false, "its state is as wide as the model"}; }

 private:
  int64_t width_;
  Tensor lower_;
  std::shared_ptr<Linear> in_, decay_, swish_, out_;
  std::shared_ptr<Norm> norm_;
};

}  // namespace kinfolk
