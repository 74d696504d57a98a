// The content bias u of Transformer-XL (Dai et al. 2019).
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// q' = q + u, u one vector a head, the same at every position: the term u . k_j of Transformer-XL's score.
/// Belongs beside the score step `xl`. Parameter: u [H, d].
struct XlBias : QkStep {
  struct Options {
    template <class V>
    void fields(V&&) {}
  };
  XlBias(const Options&, const Context& context);
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor&) override { return {band}; }
  Tensor u;
};

}  // namespace kinfolk
