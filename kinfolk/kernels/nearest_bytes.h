// The search for nearest keys where the machine multiplies bytes: queries and keys, less a point near them all, are
// rounded to a byte a coordinate, and only distances that may be among the least are computed in full.
#pragma once
#include "kinfolk/kernels/largest.h"

namespace kinfolk::kernels {

/// Queries meet a block of keys.
struct NearestSearch {
  const float* queries;  ///< [rows, width], rows at most kLargestRows
  int64_t rows;
  const float* keys;  ///< [count, width], numbers first, first + 1, ...
  int64_t first, count;
  int64_t width;
  const float* centre;  ///< [width], finite: any is right, one amid the keys is fast
  int64_t k;
  Best<float>* best;  ///< of each query; scores are -|q - key|^2, summed in double
};

/// Whether this machine can, and gains by it.
bool bytes_serve_nearest(int64_t rows, int64_t count, int64_t width);
/// Offers every key to every query. scratch holds nearest_scratch(width) floats.
void search_nearest_bytes(const NearestSearch& search, float* scratch);
int64_t nearest_scratch(int64_t width);

}  // namespace kinfolk::kernels
