// General reflection: a gate of rank one on the whole state.
#pragma once
#include "kinfolk/nn/mixers/decay_mixer.h"

namespace kinfolk {

/// S_t = (s_t e_t^T) (.) S_{t-1} + k_t v_t^T, o_t = a q_t S_t with s_t = sigmoid(W_s x_t + b_s) over key channels and
/// e_t = sigmoid(W_e x_t + b_e) over value channels. e = 1 is GLA.
/// Parts and state: those of DecayMixer, and decay (Linear [H K, D]), value_decay (Linear [H V, D]), both with a bias
/// that starts at retention's decays.
class Reflection : public DecayMixer {
 public:
  struct Options {
    int64_t heads = 0;
    double values = 1;
    double scale = 0;
    std::string output_norm = "rms";
    bool swish = true;
    int64_t chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("values", values, "width of all values together as a multiple of the width", between(0.001, 64));
      visit("scale", scale, "of the queries; 0: 1/sqrt(head width)", at_least(0));
      visit("output_norm", output_norm, "of each head's output", one_of({"none", "rms", "layer"}));
      visit("swish", swish, "gate the output by silu of another projection");
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  Reflection(const Options& options, const Context& context);
  std::string explain() const override;

 private:
  void prepare(DecayScan& scan, const Tensor& x, Pass& pass) override;
  double gate_flops(int64_t length) const override { return decay_->flops(length) + value_decay_->flops(length); }
  std::shared_ptr<Linear> decay_, value_decay_;
};

}  // namespace kinfolk
