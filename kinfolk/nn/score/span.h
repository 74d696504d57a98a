// Adaptive attention span (Sukhbaatar et al. 2019).
#pragma once
#include "kinfolk/nn/score/by_distance.h"

namespace kinfolk {

/// a_ij = m(i - j) e^(s_ij) / sum_r m(i - r) e^(s_ir), m(x) = clip((R + z - x)/R, 0, 1): each head learns how far back
/// it looks, z = longest * sigmoid(a) tokens in full and R more that fade. As a step: ln m is added to the score.
/// Loss "span": the mean of z over the heads; weigh it in the recipe's [losses]. A step cannot spare the work beyond
/// the span: put `window(longest + ramp)` into the pattern. For causal patterns. Parameter: a [H].
struct Span : ByDistance {
  struct Options {
    int64_t longest = 512, ramp = 32;
    bool own = true;
    template <class V>
    void fields(V&& visit) {
      visit("longest", longest, "tokens, the limit of z", at_least(1));
      visit("ramp", ramp, "R, tokens over which the mask falls to 0", at_least(1));
      visit("own", own, "a query sees its own position; the article's sum leaves it out");
    }
  };
  Span(const Options& options, const Context& context);
  Tensor table(const Tensor& distance) const override;
  void add_losses(Pass& pass) override;
  Tensor z() const;  ///< [H]
  Tensor a;

 private:
  Options options_;
};

}  // namespace kinfolk
