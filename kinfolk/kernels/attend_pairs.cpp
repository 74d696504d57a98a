#include "kinfolk/kernels/attend_pairs.h"

#include <algorithm>

#include "kinfolk/kernels/attend_sight.h"

namespace kinfolk::kernels {
namespace {

constexpr size_t kMostBits = 4096 * kAttendRows;  ///< rows that are kept: 6 MiB
constexpr size_t kHashes = 4096;

bool same_rows(const Whole& x, int64_t lanes, int64_t length) {
  for (int64_t b = 1; b < lanes && x.data && x.lane != 0; ++b)
    if (!std::equal(x.row(0), x.row(0) + length, x.row(b))) return false;
  return true;
}

PairBits whole_row(int64_t columns) {
  const auto ones = [](int64_t n) { return n >= 64 ? ~uint64_t{0} : n <= 0 ? 0 : (uint64_t{1} << n) - 1; };
  return {ones(columns), ones(columns - 64)};
}

}  // namespace

bool PairTiles::fits(const Attend& a) {
  int64_t tiles = 0;
  for (const AttendSet& set : a.sets) tiles += (set.length + kAttendColumns - 1) / kAttendColumns;
  return a.batch * tiles * ((a.length + kAttendRows - 1) / kAttendRows) <= (int64_t{1} << 22);  // 16 MiB
}

PairTiles::PairTiles(const Attend& a) {
  bool alike = a.pattern->lanes() == 1 && same_rows(a.q_at, a.batch, a.length);
  for (const AttendSet& set : a.sets) alike = alike && same_rows(set.at, a.batch, set.length);
  lanes_ = alike ? std::min<int64_t>(a.batch, 1) : a.batch;
  query_tiles_ = (a.length + kAttendRows - 1) / kAttendRows;
  heads_.assign(kHashes, -1);
  std::vector<PairBits> bits(kAttendRows);
  for (int64_t lane = 0; lane < lanes_; ++lane) {
    const std::vector<SetSight> sets = sight_of(a, lane);
    first_.emplace_back(), count_.emplace_back();
    for (const SetSight& set : sets) {
      first_.back().push_back(static_cast<int64_t>(places_.size()));
      count_.back().push_back(static_cast<int64_t>(set.tiles.size()));
      for (int64_t t = 0; t < query_tiles_; ++t) {
        const QueryTile q = query_tile(a, lane, t * kAttendRows);
        for (const KeyTile& k : set.tiles) {
          places_.push_back(none);
          if (q.positions.empty()) continue;
          const int64_t low = q.positions.low - k.at.high, high = q.positions.high - k.at.low;
          if (std::none_of(a.bands.begin(), a.bands.end(),
                           [&](const AttendBand& band) { return high >= band.nearest && low <= band.farthest; })) {
            continue;
          }
          if (!a.pattern->may_see(q.positions.low, q.positions.high, k.at.low, k.at.high)) continue;
          if (bits_.size() >= kMostBits) {
            places_.back() = unknown;
            continue;
          }
          std::fill_n(bits.data(), q.count, PairBits{});
          a.pattern->see(lane, q.at, q.count, set.at + k.first, k.count, k.affine, bits.data());
          bool any = false, every = true;
          const PairBits whole = whole_row(k.count);
          for (int64_t r = 0; r < q.count; ++r) {
            if (q.at[r] < 0) bits[static_cast<size_t>(r)] = {};
            const PairBits& row = bits[static_cast<size_t>(r)];
            any = any || (row[0] | row[1]) != 0;
            every = every && (row == whole || q.at[r] < 0);
          }
          if (any) places_.back() = every ? int32_t{all} : keep(bits.data(), q.count);
        }
      }
    }
  }
}

int32_t PairTiles::keep(const PairBits* bits, int64_t rows) {
  uint64_t hash = static_cast<uint64_t>(rows);
  for (int64_t r = 0; r < rows; ++r) {
    hash = (hash ^ bits[r][0]) * 0x9E3779B97F4A7C15ull;
    hash = ((hash ^ (hash >> 29)) ^ bits[r][1]) * 0xBF58476D1CE4E5B9ull;
  }
  int32_t& known = heads_[(hash >> 40) % kHashes];  // the newest of its hash
  if (known >= 0 && rows_[static_cast<size_t>(known)] == static_cast<size_t>(rows) &&
      std::equal(bits, bits + rows, this->bits(known))) {
    return known;
  }
  known = static_cast<int32_t>(starts_.size());
  starts_.push_back(bits_.size()), rows_.push_back(static_cast<size_t>(rows));
  bits_.insert(bits_.end(), bits, bits + rows);
  return known;
}

int32_t PairTiles::find(int64_t lane, int64_t query_tile, size_t set, int64_t key_tile) const {
  const auto b = lanes_ == 1 ? size_t{0} : static_cast<size_t>(lane);
  return places_[static_cast<size_t>(first_[b][set] + query_tile * count_[b][set] + key_tile)];
}

}  // namespace kinfolk::kernels
