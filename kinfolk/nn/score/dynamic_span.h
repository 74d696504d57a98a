// Dynamic attention span (Sukhbaatar et al. 2019).
#pragma once
#include "kinfolk/nn/score/score.h"

namespace kinfolk {

/// The mask of `span` with a span of each token and head: a_ij = m_i(i - j) e^(s_ij) / sum_r m_i(i - r) e^(s_ir),
/// m_i(x) = clip((R + z_i - x)/R, 0, 1), z_i = longest * sigmoid(v_h . x_i + b_h), x_i the branch's input at the query.
/// Loss "span": the mean of z over valid tokens and heads; weigh it in the recipe's [losses]. A step cannot spare the
/// work beyond the span: put `window(longest + ramp)` into the pattern. For causal patterns.
/// Parameters: v [H, D], b [H].
struct DynamicSpan : Score {
  struct Options {
    int64_t longest = 512, ramp = 32;
    bool own = true;
    double start = -2;
    template <class V>
    void fields(V&& visit) {
      visit("longest", longest, "tokens, the limit of z", at_least(1));
      visit("ramp", ramp, "R, tokens over which the mask falls to 0", at_least(1));
      visit("own", own, "a query sees its own position; the article's sum leaves it out");
      visit("start", start, "b before training: spans begin at about longest * sigmoid(start)", between(-20, 20));
    }
  };
  DynamicSpan(const Options& options, const Context& context);
  int64_t query_columns() const override { return 1; }
  Tensor of_queries(const Tensor& x, Pass& pass) override;  ///< z, and the loss
  std::optional<QuerySpan> spans(const Tensor& q_raw) override;
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override;
  Tensor z(const Tensor& x) const;  ///< [B, L, D] -> [B, H, L]
  Tensor v, b;

 private:
  Options options_;
};

}  // namespace kinfolk
