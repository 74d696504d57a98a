// Sizes for a number of parameters: the model is built on the meta device, which takes no memory, and counted.
#include <c10/core/Device.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

constexpr double kWithin = 0.01;

int64_t count(const Recipe& recipe, Size size, int64_t width, int64_t feed) {
  size.width = width, size.feed = feed;
  return Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta))->parameter_count();
}

double distance(int64_t found, int64_t wanted) {
  return std::abs(static_cast<double>(found) / static_cast<double>(wanted) - 1);
}

/// The least x >= 1 with grows(x) >= wanted; none up to `highest`: highest.
int64_t least(const std::function<int64_t(int64_t)>& grows, int64_t wanted, int64_t highest) {
  int64_t low = 0, high = 1;  // grows(low) < wanted
  while (high < highest && grows(high) < wanted) low = high, high = std::min(highest, high * 2);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (grows(middle) < wanted ? low : high) = middle;
  }
  return high;
}

}  // namespace

Size solve_budget(const Recipe& recipe, Size size, int64_t parameters) {
  if (parameters < 1) refuse("[budget] expected at least 1 parameter; found ", parameters);
  const int64_t unit = 8 * size.heads;
  const double ratio = static_cast<double>(size.feed) / static_cast<double>(size.width);
  const auto feed_at = [&](int64_t units) {
    return std::max<int64_t>(1, std::llround(ratio * static_cast<double>(units * unit)));
  };
  const int64_t smallest = count(recipe, size, unit, 1);
  const int64_t above =
      least([&](int64_t units) { return count(recipe, size, units * unit, feed_at(units)); }, parameters, 1 << 20);

  // The width just below or just above the budget, with the feed width that meets it; of those that do, the one whose
  // feed width is nearest to its usual multiple of the width.
  struct Candidate {
    int64_t width, feed, count;
    double bend;
  };
  std::vector<Candidate> found;
  for (const int64_t units : {above - 1, above}) {
    if (units < 1) continue;
    const int64_t width = units * unit;
    const int64_t high =
        least([&](int64_t feed) { return count(recipe, size, width, feed); }, parameters, 64 * feed_at(units));
    for (const int64_t feed : {high - 1, high})
      if (feed >= 1) {
        const double bend = std::abs(std::log(static_cast<double>(feed) / static_cast<double>(feed_at(units))));
        found.push_back({width, feed, count(recipe, size, width, feed), bend});
      }
  }
  const Candidate* best = nullptr;
  for (const auto& one : found) {
    if (distance(one.count, parameters) > kWithin) continue;
    // Neighbouring feed widths bend alike: between those, the nearer count.
    const bool same = best && best->width == one.width;
    if (!best || (same ? distance(one.count, parameters) < distance(best->count, parameters) : one.bend < best->bend)) {
      best = &one;
    }
  }
  if (!best) {
    const auto nearest = std::min_element(found.begin(), found.end(), [&](const auto& a, const auto& b) {
      return distance(a.count, parameters) < distance(b.count, parameters);
    });
    fail("[budget] expected a number of parameters that ", recipe.name, " can have at depth ", size.depth, ", ",
         size.heads, " heads and vocabulary ", size.vocabulary, ", at least ", smallest, "; found ", parameters,
         "; nearest: ", nearest->count, " (width ", nearest->width, ", feed ", nearest->feed, ")");
  }
  size.width = best->width, size.feed = best->feed;
  return size;
}

}  // namespace kinfolk
