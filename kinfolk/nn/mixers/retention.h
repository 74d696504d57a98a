// RetNet's multi-scale retention.
#pragma once
#include "kinfolk/nn/mixers/decay_mixer.h"
#include "kinfolk/nn/qk/rotation.h"

namespace kinfolk {

/// S_t = gamma_h S_{t-1} + k_t v_t^T, o_t = q_t S_t with gamma_h = 1 - 2^(-5-h), q and k turned by their positions in
/// pairs (2j, 2j + 1) by theta_j = 10000^-(j / (K/2 - 1)), and k divided by sqrt(K), so that the state carries that
/// factor; then a norm by head without gain, a swish gate, and W_out   (Sun et al. 2023, arXiv 2307.08621).
/// The article's extra normalisations of scores (by detached sums of rows and of decays) are left out: the norm cancels
/// them but for its eps. Weights trained with them need them.
/// Parts and state: those of DecayMixer.
class Retention : public DecayMixer {
 public:
  struct Options {
    int64_t heads = 0;
    double values = 1;
    bool rotary = true;
    std::string output_norm = "group";
    double eps = 1e-6;
    bool bias = false;
    int64_t chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("values", values, "width of all values together as a multiple of the width", between(0.001, 64));
      visit("rotary", rotary, "turn queries and keys by their positions");
      visit("output_norm", output_norm, "of each head's output: group subtracts the mean (the article), rms does not",
            one_of({"group", "rms"}));
      visit("eps", eps, "of the norm", at_least(0));
      visit("bias", bias, "biases of the projections");
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  Retention(const Options& options, const Context& context);
  std::string explain() const override;
  Tensor gamma;  ///< [H] decays, not trained

 private:
  void prepare(DecayScan& scan, const Tensor& x, Pass& pass) override;
  Rotation rotation_;
};

}  // namespace kinfolk
