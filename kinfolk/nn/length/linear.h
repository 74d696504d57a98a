// The length projected by a matrix.
#pragma once
#include "kinfolk/nn/length/projection.h"

namespace kinfolk {

/// slot_r = sum_j E[h, r, j] row_j, j the place among the rows, E learned: the first n columns of a shorter sequence
/// (Wang et al. 2020, equation 7). Parameter: weight [1 or H, k, size.context], normal with standard deviation
/// 1/sqrt(size.context), so that a slot of a full context is as large as a row.
class LinearLength : public LengthProjection {
 public:
  struct Options {
    int64_t rank = 64;
    bool per_head = false;
    template <class V>
    void fields(V&& visit) {
      visit("rank", rank, "slots k that a sequence becomes", at_least(1));
      visit("per_head", per_head, "a matrix for each head; else one for all (headwise sharing)");
    }
  };
  LinearLength(const Options& options, const Context& context);
  LengthSlots project(const Tensor& rows, const Tensor& seen) const override;
  int64_t slots(int64_t) const override { return weight.size(1); }
  int64_t longest() const override { return weight.size(2); }
  bool commutes() const override { return weight.size(0) == 1; }
  double flops(int64_t length, int64_t width) const override;
  Tensor weight;
};

}  // namespace kinfolk
