// Which keys the queries of a tile see, from their positions.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kinfolk/kernels/attend.h"

namespace kinfolk::kernels {

struct Range {
  int64_t low = INT64_MAX, high = INT64_MIN;
  void add(int64_t x) { low = std::min(low, x), high = std::max(high, x); }
  bool empty() const { return low > high; }
  bool one() const { return low == high; }
};

/// Keys first .. first + count - 1 of a set's valid keys.
struct KeyTile {
  int64_t first = 0, count = 0;
  bool affine = false;  ///< positions grow by one, and all are of one document
  Range at, document;
};

/// The valid keys of a set in one lane, tile by tile.
struct SetSight {
  const int64_t* index = nullptr;  ///< column of a valid key; null: all are valid
  const int64_t *at = nullptr, *document = nullptr;
  int64_t count = 0;
  std::vector<KeyTile> tiles;
  std::vector<int64_t> held_index, held_at, held_document;
};

struct QueryTile {
  int64_t first = 0, count = 0;
  const int64_t *at = nullptr, *document = nullptr;  ///< of the tile's first query
  bool valid = true;
  Range positions, documents;
};

/// Rows of a tile that look at the same columns, multiples of 16.
struct Strip {
  int64_t row = 0, rows = 0, begin = 0, end = 0;
};
struct TileSight {
  bool full = false;       ///< every pair is seen, and the columns are a multiple of 16
  bool affine = false;     ///< a row sees columns low <= c < high; else what mask says
  bool scattered = false;  ///< affine, and of those columns the ones in `pairs`
  int strips = 0;
  Strip strip[kAttendRows / 24 * 3];
  int32_t low[kAttendRows], high[kAttendRows];
  PairBits pairs[kAttendRows];
  std::vector<float> mask;    ///< [rows, kAttendColumns] 0 or -inf
  std::vector<float> factor;  ///< like it; empty: none
};

/// The sets as lane b sees them.
std::vector<SetSight> sight_of(const Attend& a, int64_t lane);
QueryTile query_tile(const Attend& a, int64_t lane, int64_t first);
/// What the queries see of the keys in a band. False: nothing.
bool meet(const Attend& a, int64_t lane, size_t band, const QueryTile& q, size_t set, const SetSight& sight,
          const KeyTile& k, TileSight& out);

}  // namespace kinfolk::kernels
