// Key normalisation (Su Jianlin 2023).
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// score_ij = scale q_i . k_j / |k_j|: the key's norm takes the place of sqrt(d), queries keep theirs. A key of zeros
/// stays zero. Rotations do not change a norm, so the order with `rope` is free.
struct KeyNorm : QkStep {
  struct Options {
    double scale = 1;
    template <class V>
    void fields(V&& visit) {
      visit("scale", scale, "of the product with the normalised key, in place of the branch's", at_least(1e-6));
    }
  };
  KeyNorm(const Options& options, const Context& context);
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor&) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor&) override;

 private:
  Options options_;
};

}  // namespace kinfolk
