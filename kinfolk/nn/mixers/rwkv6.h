// RWKV-6: reads before it writes, with decays that the token chooses for each channel.
#pragma once
#include "kinfolk/nn/mixers/decay_mixer.h"

namespace kinfolk {

/// o_t = r_t (S_{t-1} + diag(u) k_t v_t^T), S_t = diag(w_t) S_{t-1} + k_t v_t^T,
/// w_t = exp(-exp(w_0 + W_2 tanh(W_1 x^w_t))); each of r, k, v, gate and w is made of a mix of this token and the one
/// before, x^i_t = x_t + m_i (x_{t-1} - x_t) with learned m_i; then a norm by head, a swish gate and W_out
/// (Peng et al. 2024, arXiv 2404.05892; the mixes m_i are vectors here, without the article's low-rank part).
/// Parts: those of DecayMixer (q is the article's r), mix [5, D] for r, k, v, gate, w, bonus u [H, K], decay_low
/// (Linear [rank, D]), decay (Linear [H K, rank], with bias w_0). State: that of DecayMixer; past [B, D, 1], the last
/// input.
class Rwkv6 : public DecayMixer {
 public:
  struct Options {
    int64_t heads = 0;
    int64_t rank = 32;
    double scale = 1;
    int64_t chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("rank", rank, "inner width of the projection to decays", at_least(1));
      visit("scale", scale, "of the queries; 0: 1/sqrt(head width)", at_least(0));
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  static constexpr auto kPast = "past";

  Rwkv6(const Options& options, const Context& context);
  State start(int64_t batch, at::TensorOptions like) const override;
  std::string explain() const override;

 private:
  Streams streams(const Tensor& x, Pass& pass, State* state) override;
  void prepare(DecayScan& scan, const Tensor& x, Pass& pass) override;
  double gate_flops(int64_t length) const override { return low_->flops(length) + decay_->flops(length); }
  Tensor mix_, bonus_;
  std::shared_ptr<Linear> low_, decay_;
};

}  // namespace kinfolk
