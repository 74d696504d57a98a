// The patterns of the heads of one branch: one for all of them, or one each.
#pragma once
#include <functional>

#include "kinfolk/pattern/pattern.h"

namespace kinfolk {

struct HeadPatterns {
  std::vector<std::shared_ptr<const Pattern>> each;  ///< one for all heads; or for the heads in turn, over and over

  int64_t nearest() const;   ///< of all of them together
  int64_t farthest() const;  ///< of all of them together
  bool causal() const { return nearest() >= 0; }
  bool relative() const;
  std::optional<int64_t> horizon() const;  ///< of the one that sees farthest; none: some sees all keys
  HeadPatterns with(const std::map<std::string, Tensor>& facts, int64_t lanes) const;
  std::string text() const;  ///< the patterns, each once, with ; between them

  /// Visible pairs of the queries [from, from + length) of one lane, a mean over the heads. A causal query at t may
  /// look at the newest `seen(t)` keys, others at the keys [from, from + length). Exact for intervals of distances and
  /// up to 512 queries; beyond, 512 or more queries spread evenly stand for the others.
  double pairs(int64_t from, int64_t length, const std::function<int64_t(int64_t)>& seen) const;
};

}  // namespace kinfolk
