// Log-n scaling: attention whose entropy does not grow with the number of keys (Su Jianlin 2021).
#pragma once
#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// score_ij = s_i q_i . k_j / sqrt(d), s_i = ln(n_i) / ln(trained), n_i = i + 1 the tokens up to the query, whatever
/// the pattern shows of them. With `clip`, s_i is at least 1 (the form beside ReRoPE); without, n = 1 gives s = 0.
struct LogN : QkStep {
  struct Options {
    int64_t trained = 0;
    bool clip = true;
    template <class V>
    void fields(V&& visit) {
      visit("trained", trained, "length at which the factor is 1; 0: tokens of a training sequence, the size's context",
            at_least(0));
      visit("clip", clip, "never below 1, so that nothing changes within the trained length");
    }
  };
  LogN(const Options& options, const Context& context);
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor&) override { return {band}; }
  bool relative() const override { return false; }

 private:
  Options options_;
};

}  // namespace kinfolk
