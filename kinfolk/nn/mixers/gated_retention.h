// Gated retention: one decay for each token and head, made from the token.
#pragma once
#include "kinfolk/nn/mixers/decay_mixer.h"

namespace kinfolk {

/// S_t = gamma_t S_{t-1} + k_t v_t^T, o_t = a q_t S_t, gamma_t = sigmoid(w x_t + b)^(1/tau) for each head (gated
/// retention of Sun et al. 2024, arXiv 2405.05254; the gate of Peng et al. 2021, arXiv 2103.02143; simple GLA).
/// Parts and state: those of DecayMixer, and decay (Linear [H, D], with bias), which starts at retention's decays.
class GatedRetention : public DecayMixer {
 public:
  struct Options {
    int64_t heads = 0;
    double values = 1;
    double tau = 1;
    double scale = 0;
    std::string output_norm = "rms";
    bool swish = true;
    bool bias = false;
    int64_t chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("values", values, "width of all values together as a multiple of the width", between(0.001, 64));
      visit("tau", tau, "the decay is a sigmoid to the power of 1/tau", between(1e-3, 1e6));
      visit("scale", scale, "of the queries; 0: 1/sqrt(head width)", at_least(0));
      visit("output_norm", output_norm, "of each head's output", one_of({"none", "rms", "layer"}));
      visit("swish", swish, "gate the output by silu of another projection");
      visit("bias", bias, "biases of the projections");
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  GatedRetention(const Options& options, const Context& context);
  std::string explain() const override;

 private:
  void prepare(DecayScan& scan, const Tensor& x, Pass& pass) override;
  double gate_flops(int64_t length) const override { return decay_->flops(length); }
  double tau_;
  std::shared_ptr<Linear> decay_;
};

}  // namespace kinfolk
