#include "kinfolk/kernels/attend_sight.h"

#include <limits>

#include "kinfolk/kernels/attend_mask.h"

namespace kinfolk::kernels {
namespace {

constexpr int64_t kStripRows = 24;
constexpr float kUnseen = -std::numeric_limits<float>::infinity();

void fill_mask(const Attend& a, int64_t lane, const AttendBand& band, const QueryTile& q, size_t set,
               const SetSight& sight, const KeyTile& k, TileSight& out) {
  out.mask.resize(kAttendRows * kAttendColumns);
  AttendMask<float> mask;
  mask.q_at = q.at, mask.k_at = sight.at + k.first;
  if (q.document && sight.document) mask.q_document = q.document, mask.k_document = sight.document + k.first;
  const int64_t *from = a.sets[set].from.row(lane), *until = a.sets[set].until.row(lane);
  mask.from = from ? from + q.first : nullptr, mask.until = until ? until + q.first : nullptr;
  mask.rows = q.count, mask.columns = k.count;
  mask.nearest = band.nearest, mask.farthest = band.farthest;
  uint8_t seen[kAttendRows];
  fill_attend_mask(mask, out.mask.data(), kAttendColumns, seen);
  const int64_t end = attend_padded(k.count);
  for (int64_t r = 0; r < q.count; ++r) {
    std::fill_n(out.mask.data() + r * kAttendColumns + k.count, end - k.count, kUnseen);
  }
  out.affine = out.full = out.scattered = false;
  out.strips = 1;
  out.strip[0] = {0, q.count, 0, end};
}

/// What the pattern shows of a tile: all, none, or the pairs in `out`.
PairTiles::Kind ask_pattern(const Attend& a, int64_t lane, const QueryTile& q, size_t set, const SetSight& sight,
                            const KeyTile& k, PairBits* out) {
  const int32_t place =
      a.pairs ? a.pairs->find(lane, q.first / kAttendRows, set, k.first / kAttendColumns) : int32_t{PairTiles::unknown};
  if (place == PairTiles::none || place == PairTiles::all) return static_cast<PairTiles::Kind>(place);
  if (place >= 0) {
    std::copy_n(a.pairs->bits(place), q.count, out);
    return PairTiles::unknown;
  }
  if (!a.pattern->may_see(q.positions.low, q.positions.high, k.at.low, k.at.high)) return PairTiles::none;
  std::fill_n(out, q.count, PairBits{});
  a.pattern->see(lane, q.at, q.count, sight.at + k.first, k.count, k.affine, out);
  return PairTiles::unknown;
}

/// Keeps of the pairs those in [low, high) of their row, narrows these, and makes strips of what is left.
void make_scattered(const QueryTile& q, TileSight& out) {
  constexpr int64_t kBlocks = kAttendColumns / 16;
  out.scattered = true, out.full = false, out.strips = 0;
  const auto below = [](int64_t n) { return n >= 64 ? ~uint64_t{0} : n <= 0 ? 0 : (uint64_t{1} << n) - 1; };
  for (int64_t row = 0; row < q.count; row += kStripRows) {
    const int64_t rows = std::min(kStripRows, q.count - row);
    uint64_t any[2] = {};
    for (int64_t r = row; r < row + rows; ++r) {
      for (int w = 0; w < 2; ++w) {
        uint64_t& word = out.pairs[r][static_cast<size_t>(w)];
        word &= below(out.high[r] - 64 * w) & ~below(out.low[r] - 64 * w);
        any[w] |= word;
      }
      const auto& [a, b] = out.pairs[r];
      out.low[r] = a ? __builtin_ctzll(a) : b ? 64 + __builtin_ctzll(b) : 0;
      out.high[r] = b ? 128 - __builtin_clzll(b) : a ? 64 - __builtin_clzll(a) : 0;
    }
    // Blocks of 16 columns that some row sees; a gap of one costs less than a strip more.
    int64_t first = -1, last = -1;
    for (int64_t c = 0; c < kBlocks; ++c) {
      if ((any[c / 4] >> (c % 4 * 16) & 0xffff) == 0) continue;
      if (first >= 0 && c - last > 2) {
        out.strip[out.strips++] = {row, rows, 16 * first, 16 * (last + 1)};
        first = -1;
      }
      if (first < 0) first = c;
      last = c;
    }
    if (first >= 0) out.strip[out.strips++] = {row, rows, 16 * first, 16 * (last + 1)};
  }
}

}  // namespace

std::vector<SetSight> sight_of(const Attend& a, int64_t lane) {
  std::vector<SetSight> out(a.sets.size());
  for (size_t s = 0; s < a.sets.size(); ++s) {
    const AttendSet& set = a.sets[s];
    SetSight& sight = out[s];
    sight.at = set.at.row(lane), sight.count = set.length;
    sight.document = a.q_document.data ? set.document.row(lane) : nullptr;
    if (set.length == 0) continue;
    const bool all = consecutive(sight.at, set.length);
    if (!all && std::any_of(sight.at, sight.at + set.length, [](int64_t at) { return at < 0; })) {
      for (int64_t j = 0; j < set.length; ++j) {
        if (sight.at[j] < 0) continue;
        sight.held_index.push_back(j), sight.held_at.push_back(sight.at[j]);
        if (sight.document) sight.held_document.push_back(sight.document[j]);
      }
      sight.count = static_cast<int64_t>(sight.held_at.size());
      sight.index = sight.held_index.data(), sight.at = sight.held_at.data();
      if (sight.document) sight.document = sight.held_document.data();
    }
    for (int64_t first = 0; first < sight.count; first += kAttendColumns) {
      KeyTile tile{first, std::min(kAttendColumns, sight.count - first), false, {}, {}};
      tile.affine = all || consecutive(sight.at + first, tile.count);
      if (tile.affine) {
        tile.at = {sight.at[first], sight.at[first + tile.count - 1]};
      } else {
        for (int64_t c = 0; c < tile.count; ++c) tile.at.add(sight.at[first + c]);
      }
      if (sight.document) {
        for (int64_t c = 0; c < tile.count; ++c) tile.document.add(sight.document[first + c]);
        tile.affine = tile.affine && tile.document.one();
      }
      sight.tiles.push_back(tile);
    }
  }
  return out;
}

QueryTile query_tile(const Attend& a, int64_t lane, int64_t first) {
  QueryTile q;
  q.first = first, q.count = std::min(kAttendRows, a.length - first);
  q.at = a.q_at.row(lane) + first;
  if (a.q_document.data) q.document = a.q_document.row(lane) + first;
  for (int64_t r = 0; r < q.count; ++r) {
    if (q.at[r] < 0) {
      q.valid = false;
      continue;
    }
    q.positions.add(q.at[r]);
    if (q.document) q.documents.add(q.document[r]);
  }
  return q;
}

bool meet(const Attend& a, int64_t lane, size_t index, const QueryTile& q, size_t set, const SetSight& sight,
          const KeyTile& k, TileSight& out) {
  if (q.positions.empty() || !a.sets[set].keys[index].k.data) return false;
  const AttendBand& band = a.bands[index];
  const int64_t low = q.positions.low - k.at.high, high = q.positions.high - k.at.low;
  if (high < band.nearest || low > band.farthest || band.nearest > band.farthest) return false;
  const bool documents = q.document && sight.document;
  if (documents && (q.documents.low > k.document.high || q.documents.high < k.document.low)) return false;
  const int64_t *from = a.sets[set].from.row(lane), *until = a.sets[set].until.row(lane);
  Range starts, ends;
  if (from) {
    from += q.first;
    for (int64_t r = 0; r < q.count; ++r)
      if (q.at[r] >= 0) starts.add(from[r]);
    if (k.at.high < starts.low) return false;
  }
  if (until) {
    until += q.first;
    for (int64_t r = 0; r < q.count; ++r)
      if (q.at[r] >= 0) ends.add(until[r]);
    if (k.at.low >= ends.high) return false;
  }
  const auto shown = a.pattern ? ask_pattern(a, lane, q, set, sight, k, out.pairs) : PairTiles::all;
  if (shown == PairTiles::none) return false;
  if (!k.affine) {
    fill_mask(a, lane, band, q, set, sight, k, out);
    for (int64_t r = 0; r < q.count && shown != PairTiles::all; ++r) {
      float* row = out.mask.data() + r * kAttendColumns;
      for (int64_t c = 0; c < k.count; ++c)
        if ((out.pairs[r][static_cast<size_t>(c / 64)] >> (c % 64) & 1) == 0) row[c] = kUnseen;
    }
    return true;
  }
  out.affine = true, out.scattered = false;
  const int64_t padded = attend_padded(k.count);
  out.full = q.valid && padded == k.count && low >= band.nearest && high <= band.farthest &&
             (!documents || (q.documents.one() && q.documents.low == k.document.low)) &&
             (!from || k.at.low >= starts.high) && (!until || k.at.high < ends.low);
  if (out.full) {
    out.strips = 1;
    out.strip[0] = {0, q.count, 0, padded};
    if (shown == PairTiles::all) return true;
    std::fill_n(out.low, q.count, 0);
    std::fill_n(out.high, q.count, static_cast<int32_t>(k.count));
    make_scattered(q, out);
    return out.strips > 0;
  }
  out.strips = 0;
  for (int64_t row = 0; row < q.count; row += kStripRows) {
    const int64_t rows = std::min(kStripRows, q.count - row);
    int64_t first = INT64_MAX, last = 0;
    for (int64_t r = row; r < row + rows; ++r) {
      int64_t begin = 0, end = 0;  // columns that the row sees
      const int64_t i = q.at[r];
      if (i >= 0 && (!documents || q.document[r] == k.document.low)) {
        // i - j <= farthest and i - j >= nearest, without overflow: positions are at least 0.
        begin = band.farthest >= i ? 0 : i - band.farthest;
        end = band.nearest <= i - k.at.high ? k.at.high + 1 : i - band.nearest + 1;
        if (from) begin = std::max(begin, from[r]);
        if (until) end = std::min(end, until[r]);
        begin = std::clamp<int64_t>(begin - k.at.low, 0, k.count);
        end = std::clamp<int64_t>(end - k.at.low, 0, k.count);
      }
      if (begin >= end) begin = end = 0;
      out.low[r] = static_cast<int32_t>(begin), out.high[r] = static_cast<int32_t>(end);
      if (begin < end) first = std::min(first, begin), last = std::max(last, end);
    }
    if (first < last) out.strip[out.strips++] = {row, rows, first / 16 * 16, attend_padded(last)};
  }
  if (shown != PairTiles::all) make_scattered(q, out);
  return out.strips > 0;
}

}  // namespace kinfolk::kernels
