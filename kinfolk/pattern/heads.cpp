#include "kinfolk/pattern/heads.h"

#include <algorithm>

namespace kinfolk {
namespace {

double pairs_of(const Pattern& pattern, int64_t from, int64_t length, bool causal,
                const std::function<int64_t(int64_t)>& seen) {
  const int64_t stride = pattern.interval() ? 1 : std::max<int64_t>(1, length / 512);
  double sum = 0;
  for (int64_t t = from; t < from + length; t += stride) {
    int64_t low = causal ? t + 1 - seen(t) : from, high = causal ? t : from + length - 1;
    if (pattern.farthest() < INT64_MAX) low = std::max(low, t - pattern.farthest());
    if (pattern.nearest() > -(int64_t{1} << 62)) high = std::min(high, t - pattern.nearest());
    if (low > high) continue;
    double count = static_cast<double>(high - low + 1);
    if (!pattern.interval()) {
      const Tensor keys = at::arange(low, high + 1, at::kLong).view({1, 1, 1, -1});
      count = pattern.sees(at::full({1, 1, 1, 1}, t, at::kLong), keys).sum().item<double>();
    }
    sum += count * static_cast<double>(std::min(stride, from + length - t));
  }
  return sum;
}

}  // namespace

int64_t HeadPatterns::nearest() const {
  int64_t out = INT64_MAX;
  for (const auto& pattern : each) out = std::min(out, pattern->nearest());
  return out;
}

int64_t HeadPatterns::farthest() const {
  int64_t out = INT64_MIN;
  for (const auto& pattern : each) out = std::max(out, pattern->farthest());
  return out;
}

bool HeadPatterns::relative() const {
  return std::all_of(each.begin(), each.end(), [](const auto& pattern) { return pattern->relative(); });
}

std::optional<int64_t> HeadPatterns::horizon() const {
  int64_t farthest = 0;
  for (const auto& pattern : each) {
    const auto mine = pattern->horizon();
    if (!mine) return {};
    farthest = std::max(farthest, *mine);
  }
  return farthest;
}

HeadPatterns HeadPatterns::with(const std::map<std::string, Tensor>& facts, int64_t lanes) const {
  HeadPatterns out;
  for (const auto& pattern : each) out.each.push_back(fill_in(pattern, facts, lanes));
  return out;
}

std::string HeadPatterns::text() const {
  std::vector<std::string> once;
  std::string out;
  for (const auto& pattern : each) {
    const std::string words = pattern->text();
    if (std::find(once.begin(), once.end(), words) != once.end()) continue;
    out += (once.empty() ? "" : "; ") + words;
    once.push_back(words);
  }
  return out;
}

double HeadPatterns::pairs(int64_t from, int64_t length, const std::function<int64_t(int64_t)>& seen) const {
  double sum = 0;
  for (const auto& pattern : each) sum += pairs_of(*pattern, from, length, causal(), seen);
  return sum / static_cast<double>(each.size());
}

}  // namespace kinfolk
