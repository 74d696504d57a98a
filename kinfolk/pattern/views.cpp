#include "kinfolk/pattern/views.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr size_t kMostViews = 24, kMostProducts = 200;

bool same(const Term& a, const Term& b) { return &a == &b || a.text() == b.text(); }

/// Adds a part; false: the view has become empty.
bool add_part(View& view, const View::Part& part) {
  for (const View::Part& other : view.parts)
    if (same(*other.term, *part.term)) return other.inside == part.inside;
  view.parts.push_back(part);
  return true;
}

/// Narrows the bounds of distance; false: the view has become empty.
bool narrow(View& view, int64_t nearest, int64_t farthest) {
  view.nearest = std::max(view.nearest, nearest);
  view.farthest = std::min(view.farthest, farthest);
  return view.nearest <= view.farthest;
}

/// The pattern as a union of views that may overlap; false: there are too many.
bool expand(const std::shared_ptr<const Pattern>& pattern, std::vector<View>& out) {
  if (const auto named = std::dynamic_pointer_cast<const Named>(pattern)) return expand(named->inner, out);
  if (const auto either = std::dynamic_pointer_cast<const Either>(pattern)) {
    return expand(either->a, out) && expand(either->b, out) && out.size() <= kMostProducts;
  }
  if (const auto both = std::dynamic_pointer_cast<const Both>(pattern)) {
    std::vector<View> a, b;
    if (!expand(both->a, a) || !expand(both->b, b)) return false;
    for (const View& one : a)
      for (const View& other : b) {
        View view = one;
        bool some = narrow(view, other.nearest, other.farthest);
        for (const View::Part& part : other.parts) some = some && add_part(view, part);
        if (some) out.push_back(std::move(view));
        if (out.size() > kMostProducts) return false;
      }
    return true;
  }
  View view;
  if (const auto term = std::dynamic_pointer_cast<const Term>(pattern)) {
    view.nearest = term->nearest(), view.farthest = term->farthest();
    view.parts.push_back({term, true});
  } else if (pattern->interval()) {
    view.nearest = pattern->nearest(), view.farthest = pattern->farthest();
  } else {
    return false;
  }
  if (view.nearest <= view.farthest) out.push_back(std::move(view));
  return true;
}

/// view without `taken`, as disjoint views.
void subtract(const View& view, const View& taken, std::vector<View>& out) {
  View below = view, above = view, middle = view;
  if (taken.nearest != INT64_MIN && narrow(below, INT64_MIN, taken.nearest - 1)) out.push_back(below);
  if (taken.farthest != INT64_MAX && narrow(above, taken.farthest + 1, INT64_MAX)) out.push_back(above);
  if (!narrow(middle, taken.nearest, taken.farthest)) return;
  // Not (p and q and ...) = not p, or p and not q, or ...
  for (const View::Part& part : taken.parts) {
    View outside = middle;
    if (add_part(outside, {part.term, !part.inside})) out.push_back(std::move(outside));
    if (!add_part(middle, part)) return;
  }
}

}  // namespace

int64_t View::lanes() const {
  int64_t lanes = 1;
  for (const Part& part : parts) lanes = std::max(lanes, part.term->lanes());
  return lanes;
}

bool View::sees(int64_t lane, int64_t i, int64_t j) const {
  if (i - j < nearest || i - j > farthest) return false;
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    return part.term->has(lane, part.term->group(lane, i), j) == part.inside;
  });
}

std::vector<int64_t> View::groups(int64_t lane, int64_t i) const {
  std::vector<int64_t> out;
  for (const Part& part : parts) out.push_back(part.term->group(lane, i));
  return out;
}

std::vector<int64_t> View::keys(int64_t lane, const std::vector<int64_t>& groups, int64_t low, int64_t high) const {
  std::vector<Stretch> fewest;
  size_t source = parts.size();
  int64_t least = INT64_MAX;
  low = std::max<int64_t>(low, 0);
  for (size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].inside) continue;
    std::vector<Stretch> found;
    if (low <= high) parts[p].term->keys(lane, groups[p], low, high, found);
    int64_t count = 0;
    for (const Stretch& one : found) count += one.count();
    if (count < least) least = count, fewest = std::move(found), source = p;
  }
  std::vector<int64_t> out;
  for (const Stretch& one : fewest)
    for (int64_t j = one.low; j <= one.high; j += one.step) {
      bool seen = true;
      for (size_t p = 0; seen && p < parts.size(); ++p)
        seen = p == source || parts[p].term->has(lane, groups[p], j) == parts[p].inside;
      if (seen) out.push_back(j);
    }
  std::sort(out.begin(), out.end());
  return out;
}

std::string View::text() const {
  std::string out = Interval(nearest, farthest).text();
  for (const Part& part : parts) out += (part.inside ? " & " : " & not ") + part.term->text();
  return out;
}

std::optional<std::vector<View>> compile(const std::shared_ptr<const Pattern>& pattern, const Stretch& queries,
                                         const Stretch& keys) {
  std::vector<View> found, bands, out;
  if (!expand(pattern, found)) return {};
  // Distances beyond the stretches do not occur.
  const int64_t nearest = queries.low - keys.high, farthest = queries.high - keys.low;
  std::vector<View> grouped;
  for (View& view : found) {
    if (view.nearest < nearest && !narrow(view, nearest, INT64_MAX)) continue;
    if (view.farthest > farthest && !narrow(view, INT64_MIN, farthest)) continue;
    if (view.nearest > farthest || view.farthest < nearest) continue;
    (view.band() ? bands : grouped).push_back(std::move(view));
  }
  std::sort(bands.begin(), bands.end(), [](const View& a, const View& b) { return a.nearest < b.nearest; });
  for (const View& band : bands) {
    if (!out.empty() && (out.back().farthest == INT64_MAX || band.nearest <= out.back().farthest + 1)) {
      out.back().farthest = std::max(out.back().farthest, band.farthest);
    } else {
      out.push_back(band);
    }
  }
  for (const View& view : grouped) {
    std::vector<View> rest = {view};
    for (size_t taken = 0; taken < out.size() && !rest.empty(); ++taken) {
      std::vector<View> next;
      for (const View& one : rest) subtract(one, out[taken], next);
      rest = std::move(next);
      if (rest.size() > kMostViews) return {};
    }
    for (View& one : rest) out.push_back(std::move(one));
    if (out.size() > kMostViews) return {};
  }
  return out;
}

}  // namespace kinfolk
