// Images as sequences: which pixel comes when.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace kinfolk {

/// How a member lays out an image: row after row, or in blocks, row after row of blocks, each row after row (blocks at
/// the right and lower edge are smaller where they do not fit).  (Parmar et al. 2018)
struct ImageGrid {
  int64_t rows = 0, columns = 0;              ///< 0: no images
  int64_t block_rows = 0, block_columns = 0;  ///< 0: row after row

  bool any() const { return rows > 0; }
  int64_t pixels() const { return rows * columns; }
  /// The raster index (row * columns + column) of the pixel at each place of the sequence.
  std::vector<int64_t> order() const {
    const int64_t tall = block_rows > 0 ? block_rows : rows, wide = block_columns > 0 ? block_columns : columns;
    std::vector<int64_t> out;
    for (int64_t top = 0; top < rows; top += tall)
      for (int64_t left = 0; left < columns; left += wide)
        for (int64_t y = top; y < std::min(top + tall, rows); ++y)
          for (int64_t x = left; x < std::min(left + wide, columns); ++x) out.push_back(y * columns + x);
    return out;
  }
};

}  // namespace kinfolk
