// ALiBi: attention with linear biases (Press et al. 2022).
#pragma once
#include "kinfolk/nn/score/by_distance.h"

namespace kinfolk {

/// The slopes m_h, for any number of heads: 2^(-8(h+1)/H) for a power of two; else those of the largest power of two
/// M below H, then every other one of 2M. double [H].
Tensor alibi_slopes(int64_t heads);

/// score_ij -= m_h |i - j|, outside the scale of the dot product.
struct Alibi : ByDistance {
  struct Options {
    template <class V>
    void fields(V&&) {}
  };
  Alibi(const Options&, const Context& context) : slopes_(alibi_slopes(context.heads.count)) {}
  Tensor table(const Tensor& distance) const override;

 private:
  Tensor slopes_;
};

}  // namespace kinfolk
