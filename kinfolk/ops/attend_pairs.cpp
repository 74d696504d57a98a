#include "kinfolk/ops/attend_pairs.h"

#include "kinfolk/kernels/attend.h"
#include "kinfolk/kernels/attend_mask.h"
#include "kinfolk/ops/attend_layout.h"

namespace kinfolk {
namespace {

using kernels::PairBits;

/// A tile that is asked about.
struct Asked {
  int64_t lane;
  const int64_t* q_at;
  int64_t rows;
  const int64_t* k_at;
  int64_t columns;
  bool in_order;
};

void set(PairBits& bits, int64_t c) { bits[static_cast<size_t>(c / 64)] |= uint64_t{1} << (c % 64); }
/// Columns [begin, end).
void set_range(PairBits& bits, int64_t begin, int64_t end) {
  const auto below = [](int64_t n) { return n >= 64 ? ~uint64_t{0} : n <= 0 ? 0 : (uint64_t{1} << n) - 1; };
  for (int64_t w = 0; w < 2; ++w) bits[static_cast<size_t>(w)] |= below(end - 64 * w) & ~below(begin - 64 * w);
}

void see_interval(const Pattern& pattern, const Asked& t, PairBits* bits) {
  const int64_t nearest = pattern.nearest(), farthest = pattern.farthest(), first = t.k_at[0];
  for (int64_t r = 0; r < t.rows; ++r) {
    const int64_t i = t.q_at[r];
    if (i < 0) continue;
    if (!t.in_order) {
      for (int64_t c = 0; c < t.columns; ++c)
        if (const int64_t distance = i - t.k_at[c]; nearest <= distance && distance <= farthest) set(bits[r], c);
      continue;
    }
    // i - farthest <= j <= i - nearest, without overflow: positions are at least 0.
    const int64_t low = farthest >= i ? 0 : i - farthest;
    const int64_t last = first + t.columns - 1, high = nearest <= i - last ? last : i - nearest;
    set_range(bits[r], std::max<int64_t>(low - first, 0), std::min(high - first + 1, t.columns));
  }
}

void see_term(const Term& term, const Asked& t, PairBits* bits) {
  const int64_t lane = term.lanes() == 1 ? 0 : t.lane, first = t.k_at[0];
  std::vector<Stretch> keys;
  int64_t known = -1, known_group = 0;  // the row of the last group
  for (int64_t r = 0; r < t.rows; ++r) {
    if (t.q_at[r] < 0) continue;
    const int64_t group = term.group(lane, t.q_at[r]);
    if (known >= 0 && group == known_group) {
      bits[r] = bits[known];
      continue;
    }
    known = r, known_group = group;
    if (!t.in_order) {
      for (int64_t c = 0; c < t.columns; ++c)
        if (term.has(lane, group, t.k_at[c])) set(bits[r], c);
      continue;
    }
    keys.clear();
    term.keys(lane, group, first, first + t.columns - 1, keys);
    for (const Stretch& s : keys) {
      if (s.step == 1) {
        set_range(bits[r], s.low - first, s.high - first + 1);
      } else {
        for (int64_t j = s.low; j <= s.high; j += s.step) set(bits[r], j - first);
      }
    }
  }
}

/// By the pattern's meaning, for kinds that are not known here.
void see_any(const Pattern& pattern, const Asked& t, PairBits* bits) {
  const auto rows = [](const int64_t* data, int64_t n) {
    return at::from_blob(const_cast<int64_t*>(data), {n}, at::TensorOptions().dtype(at::kLong));
  };
  Tensor seen = pattern.sees(rows(t.q_at, t.rows).view({1, 1, t.rows, 1}), rows(t.k_at, t.columns).view({1, 1, 1, -1}));
  seen = seen[seen.size(0) == 1 ? 0 : t.lane][0].expand({t.rows, t.columns}).contiguous();
  const bool* from = seen.const_data_ptr<bool>();
  for (int64_t r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < t.columns; ++c)
      if (*from++) set(bits[r], c);
}

/// `bits` are zeros.
void see_pattern(const Pattern& pattern, const Asked& t, PairBits* bits) {
  const auto two = [&](const Pattern& a, const Pattern& b, auto&& join) {
    std::vector<PairBits> other(static_cast<size_t>(t.rows));
    see_pattern(a, t, bits);
    see_pattern(b, t, other.data());
    for (int64_t r = 0; r < t.rows; ++r)
      for (size_t w = 0; w < 2; ++w) bits[r][w] = join(bits[r][w], other[static_cast<size_t>(r)][w]);
  };
  if (pattern.interval()) {
    see_interval(pattern, t, bits);
  } else if (const auto* both = dynamic_cast<const Both*>(&pattern)) {
    two(*both->a, *both->b, [](uint64_t a, uint64_t b) { return a & b; });
  } else if (const auto* either = dynamic_cast<const Either*>(&pattern)) {
    two(*either->a, *either->b, [](uint64_t a, uint64_t b) { return a | b; });
  } else if (const auto* named = dynamic_cast<const Named*>(&pattern)) {
    see_pattern(*named->inner, t, bits);
  } else if (const auto* term = dynamic_cast<const Term*>(&pattern)) {
    see_term(*term, t, bits);
  } else {
    see_any(pattern, t, bits);
  }
}

int64_t lanes_of(const Pattern& pattern) {
  if (const auto* both = dynamic_cast<const Both*>(&pattern)) return std::max(lanes_of(*both->a), lanes_of(*both->b));
  if (const auto* either = dynamic_cast<const Either*>(&pattern)) {
    return std::max(lanes_of(*either->a), lanes_of(*either->b));
  }
  if (const auto* named = dynamic_cast<const Named*>(&pattern)) return lanes_of(*named->inner);
  if (const auto* term = dynamic_cast<const Term*>(&pattern)) return term->lanes();
  return pattern.interval() ? 1 : INT64_MAX;
}

}  // namespace

PatternPairs::PatternPairs(std::shared_ptr<const Pattern> pattern)
    : pattern_(std::move(pattern)), lanes_(lanes_of(*pattern_)) {}

void PatternPairs::see(int64_t lane, const int64_t* q_at, int64_t rows, const int64_t* k_at, int64_t columns,
                       bool in_order, PairBits* bits) const {
  see_pattern(*pattern_, {lane, q_at, rows, k_at, columns, in_order}, bits);
}

double shown_area(const PatternPairs& pairs, const int64_t* q_at, int64_t length, const int64_t* k_at, int64_t keys) {
  constexpr int64_t kRows = kernels::kAttendRows, kColumns = kernels::kAttendColumns, kTilesAsked = 256;
  const int64_t tiles = (length + kRows - 1) / kRows, of_keys = (keys + kColumns - 1) / kColumns;
  const int64_t step = std::clamp<int64_t>(tiles * of_keys / kTilesAsked, 1, tiles);
  std::vector<PairBits> bits(static_cast<size_t>(kRows));
  double area = 0;
  int64_t asked = 0;
  for (int64_t t = step / 2; t < tiles; t += step, ++asked) {
    const int64_t rows = std::min(kRows, length - t * kRows);
    const int64_t* at = q_at + t * kRows;
    Span queries;
    for (int64_t r = 0; r < rows; ++r)
      if (at[r] >= 0) queries.add(at[r]);
    for (int64_t first = 0; first < keys && !queries.empty(); first += kColumns) {
      const int64_t columns = std::min(kColumns, keys - first);
      Span span;
      for (int64_t c = 0; c < columns; ++c)
        if (k_at[first + c] >= 0) span.add(k_at[first + c]);
      if (span.empty() || !pairs.may_see(queries.low, queries.high, span.low, span.high)) continue;
      const bool in_order = consecutive(k_at + first, columns);
      std::fill(bits.begin(), bits.end(), PairBits{});
      pairs.see(0, at, rows, k_at + first, columns, in_order, bits.data());
      for (int64_t r = 0; r < rows; r += 24) {
        const int64_t n = std::min<int64_t>(24, rows - r);
        PairBits seen = {};
        for (int64_t m = r; m < r + n; ++m)
          for (size_t w = 0; w < 2; ++w) seen[w] |= bits[static_cast<size_t>(m)][w];
        int64_t blocks = 0;
        for (int64_t b = 0; b < kColumns / 16; ++b)
          blocks += (seen[static_cast<size_t>(b / 4)] >> (b % 4 * 16) & 0xffff) != 0;
        area += static_cast<double>(n * (in_order ? 16 * blocks : kColumns));
      }
    }
  }
  return area * static_cast<double>(tiles) / static_cast<double>(std::max<int64_t>(asked, 1));
}

}  // namespace kinfolk
