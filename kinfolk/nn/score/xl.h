// The relative positions of Transformer-XL (Dai et al. 2019).
#pragma once
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/score/score.h"

namespace kinfolk {

/// score_ij += (q_i + v) . r_(i-j) * scale, r_t = W_r sinusoid(t), q before the QkSteps. With the qk step `xl_bias`,
/// whose u is added to q, the whole score is ((q_i + u) . k_j + (q_i + v) . r_(i-j)) / sqrt(d).
/// Parameters: r.weight [H d, D] without bias, v [H, d].
struct Xl : Score {
  struct Options {
    double base = 10000;
    int64_t clamp = 0;
    template <class V>
    void fields(V&& visit) {
      visit("base", base, "of the sinusoids, laid out as all sines, then all cosines", at_least(1));
      visit("clamp", clamp, "distances beyond it count as it; 0: none do", at_least(0));
    }
  };
  Xl(const Options& options, const Context& context);
  std::vector<Tensor> prepare(const Tensor& like, int64_t nearest, int64_t farthest) override;
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override;
  std::optional<QueryTable> by_query(const Tensor& q_raw, int64_t nearest, int64_t farthest) override;
  std::shared_ptr<Linear> r;
  Tensor v;

 private:
  Tensor keys(int64_t nearest, int64_t farthest);

  Options options_;
  int64_t width_;
  Tensor sinusoids_;  ///< of distances first_ and on, kept from call to call
  int64_t first_ = 0;
  double scale_;
};

}  // namespace kinfolk
