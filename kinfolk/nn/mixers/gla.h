// Gated linear attention: a decay for each token and key channel.
#pragma once
#include "kinfolk/nn/mixers/decay_mixer.h"

namespace kinfolk {

/// S_t = diag(g_t) S_{t-1} + k_t v_t^T, o_t = a q_t S_t, g_t = sigmoid(W_2 W_1 x_t + b)^(1/tau), W_1 of low rank; then
/// a norm by head, a swish gate and W_out   (Yang et al. 2023, arXiv 2312.06635: keys of half the width, tau 16, rank
/// 16). Parts and state: those of DecayMixer, and decay_low (Linear [rank, D]), decay (Linear [H K, rank], with bias).
class Gla : public DecayMixer {
 public:
  struct Options {
    int64_t heads = 0;
    double keys = 0.5, values = 1;
    int64_t rank = 16;
    double tau = 16;
    double scale = 0;
    std::string output_norm = "rms";
    bool swish = true;
    int64_t chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("keys", keys, "width of all keys together as a multiple of the width", between(0.001, 64));
      visit("values", values, "width of all values together as a multiple of the width", between(0.001, 64));
      visit("rank", rank, "inner width of the projection to decays", at_least(1));
      visit("tau", tau, "the decay is a sigmoid to the power of 1/tau", between(1e-3, 1e6));
      visit("scale", scale, "of the queries; 0: 1/sqrt(head width)", at_least(0));
      visit("output_norm", output_norm, "of each head's output", one_of({"none", "rms", "layer"}));
      visit("swish", swish, "gate the output by silu of another projection");
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  Gla(const Options& options, const Context& context);
  std::string explain() const override;

 private:
  void prepare(DecayScan& scan, const Tensor& x, Pass& pass) override;
  double gate_flops(int64_t length) const override { return low_->flops(length) + decay_->flops(length); }
  double tau_;
  std::shared_ptr<Linear> low_, decay_;
};

}  // namespace kinfolk
