// A pattern as the kernel of attend asks for it. Not a public header.
#pragma once
#include "kinfolk/kernels/attend_pairs.h"
#include "kinfolk/pattern/term.h"

namespace kinfolk {

class PatternPairs final : public kernels::AttendPattern {
 public:
  explicit PatternPairs(std::shared_ptr<const Pattern> pattern);
  int64_t lanes() const override { return lanes_; }
  bool may_see(int64_t low, int64_t high, int64_t first, int64_t last) const override {
    return pattern_->may_see({low, high}, {first, last});
  }
  void see(int64_t lane, const int64_t* q_at, int64_t rows, const int64_t* k_at, int64_t columns, bool in_order,
           kernels::PairBits* bits) const override;

 private:
  std::shared_ptr<const Pattern> pattern_;
  int64_t lanes_;
};

/// About how many pairs the kernel computes for queries and keys at these positions: those in blocks of 24 queries and
/// 16 keys of which the pattern shows one, guessed from some of the queries where they are many.
double shown_area(const PatternPairs& pairs, const int64_t* q_at, int64_t length, const int64_t* k_at, int64_t keys);

}  // namespace kinfolk
