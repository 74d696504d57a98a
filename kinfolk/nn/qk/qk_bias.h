// Biases of queries and keys before the rotation (Su Jianlin 2023).
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// q' = q + a, k' = k + b, one vector a head and a group, the same at every position. Before `rope` in the list:
/// score_ij = (R_i (q_i + a)) . (R_j (k_j + b)) / sqrt(d), which lets distance alone raise a score.
/// Parameters: a [H, d], b [G, d].
struct QkBias : QkStep {
  struct Options {
    template <class V>
    void fields(V&&) {}
  };
  QkBias(const Options&, const Context& context);
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor&) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor&) override;
  Tensor a, b;
};

}  // namespace kinfolk
