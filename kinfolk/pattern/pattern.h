// Which pairs may meet: a value, parsed from text such as "causal & window(256)".
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinfolk/core/value.h"

namespace kinfolk {
using at::Tensor;

struct Pattern {
  virtual ~Pattern() = default;
  /// The meaning: bool, shaped like the broadcast of q_at and k_at (int64; for example [B, 1, Lq, 1] and [B, 1, 1,
  /// Lk]).
  virtual Tensor sees(const Tensor& q_at, const Tensor& k_at) const = 0;
  /// Distances i - j of visible pairs lie in [nearest, farthest]; causal patterns have nearest >= 0.
  virtual int64_t nearest() const = 0;
  virtual int64_t farthest() const = 0;
  /// Whether the pattern is exactly nearest() <= i - j <= farthest(), so that a mask is two comparisons.
  virtual bool interval() const { return false; }
  virtual std::string text() const = 0;  ///< parses back to an equal pattern

  bool causal() const { return nearest() >= 0; }
  /// How many of the newest keys (the own one included) a causal query can ever see; none: all of them.
  std::optional<int64_t> horizon() const {
    if (farthest() == INT64_MAX) return {};
    return farthest() + 1;
  }
};

/// Terms: causal (j <= i), full, window(w) (0 <= |i-j| < w: w keys on each side, the own position included in both;
/// with causal w keys, as in Beltagy et al. 2020); joined by & (binds tighter) and | with parentheses. Names in place
/// of an integer refer to `let`. Throws UsageError with the text, a caret under the fault and the nearest known word.
std::shared_ptr<const Pattern> parse_pattern(const std::string& text, const Value* let = nullptr,
                                             const Place& place = {});

}  // namespace kinfolk
