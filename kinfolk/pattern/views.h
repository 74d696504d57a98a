// A pattern as a list of views that can each be computed densely.
#pragma once
#include <optional>

#include "kinfolk/pattern/term.h"

namespace kinfolk {

/// The pairs with nearest <= i - j <= farthest that are in every part, or outside of it where `inside` is false.
/// Without parts it is a band. A view with parts is a set of dense rectangles: queries that belong to the same group of
/// every part see the same keys (residue classes, columns, blocks), but for the bounds of distance.
struct View {
  struct Part {
    std::shared_ptr<const Term> term;
    bool inside = true;
  };
  int64_t nearest = INT64_MIN, farthest = INT64_MAX;
  std::vector<Part> parts;  ///< none, or at least one of them inside

  bool band() const { return parts.empty(); }
  int64_t lanes() const;  ///< 1: all lanes are alike
  bool sees(int64_t lane, int64_t i, int64_t j) const;
  /// The groups of a query, one a part.
  std::vector<int64_t> groups(int64_t lane, int64_t i) const;
  /// The keys of these groups within [low, high], in order, bounds of distance aside.
  std::vector<int64_t> keys(int64_t lane, const std::vector<int64_t>& groups, int64_t low, int64_t high) const;
  std::string text() const;
};

/// Disjoint views whose union is the pattern, bands first, for queries and keys at positions in these stretches.
/// Nothing: that would take more than 24 views.
std::optional<std::vector<View>> compile(const std::shared_ptr<const Pattern>& pattern,
                                         const Stretch& queries = {0, INT64_MAX}, const Stretch& keys = {0, INT64_MAX});

}  // namespace kinfolk
