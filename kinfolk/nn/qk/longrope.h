// LongRoPE: a factor for each pair, found by search (Ding et al. 2024).
#pragma once
#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// RoPE with f'_t = f_t / short_factor_t for queries among the first L tokens and f_t / long_factor_t for those beyond,
/// the keys that a query meets turned as the query is. What turns of q and k is multiplied by
/// sqrt(1 + ln(s) / ln(L)), s > 1. The factors follow from the position of the query alone (transformers: from the
/// length of the call), so keys are cached raw.
struct LongRope : QkStep {
  struct Options : RotationOptions {
    double factor = 4;
    int64_t trained = 0;
    std::vector<double> short_factor, long_factor;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("factor", factor, "s, how many times longer than trained", at_least(1));
      visit("trained", trained, "L, tokens of the training sequences; 0: the size's context", at_least(0));
      visit("short_factor", short_factor, "one a pair, within L; empty: 1", at_least(1e-6));
      visit("long_factor", long_factor, "one a pair, beyond L; empty: the factor s", at_least(1e-6));
    }
  };
  LongRope(const Options& options, const Context& context);
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor& at) override { return keys_for(band, at, 0); }
  std::vector<KeyBand> keys_for(const KeyBand& band, const Tensor& at, int64_t stage) override;
  Tensor stage(const Tensor& at) const override { return at.ge(trained_).to(at::kLong); }
  bool keys_final() const override { return false; }
  bool relative() const override { return false; }

 private:
  Rotation within_, beyond_;
  int64_t trained_;
};

}  // namespace kinfolk
