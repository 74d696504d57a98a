#include "kinfolk/kernels/attend_mask.h"

#include <cstring>
#include <limits>
#include <vector>

namespace kinfolk {
namespace {

template <class T>
T value_at(const AttendMask<T>& mask, int64_t distance) {
  if (distance < mask.nearest || distance > mask.farthest) return -std::numeric_limits<T>::infinity();
  return mask.table ? mask.table[distance - mask.lowest] : T(0);
}

/// Consecutive positions: a row is the row above moved by one, so all rows are slices of one line of distances.
template <class T>
void fill_sliding(const AttendMask<T>& mask, T* out, int64_t stride, uint8_t* seen) {
  const int64_t first = mask.q_at[0] - mask.k_at[0], last = first + mask.rows - 1;
  std::vector<T> line(static_cast<size_t>(mask.rows + mask.columns - 1));
  for (size_t i = 0; i < line.size(); ++i) line[i] = value_at(mask, last - static_cast<int64_t>(i));
  for (int64_t r = 0; r < mask.rows; ++r) {
    std::memcpy(out + r * stride, line.data() + (mask.rows - 1 - r), static_cast<size_t>(mask.columns) * sizeof(T));
    const int64_t high = first + r, low = high - (mask.columns - 1);
    if (high >= mask.nearest && low <= mask.farthest && mask.nearest <= mask.farthest) seen[r] = 1;
  }
}

}  // namespace

bool consecutive(const int64_t* at, int64_t length) {
  if (length > 0 && at[0] < 0) return false;
  bool same = true;
  for (int64_t i = 1; i < length; ++i) same &= at[i] == at[0] + i;
  return same;
}

template <class T>
void fill_attend_mask(const AttendMask<T>& mask, T* out, int64_t stride, uint8_t* seen) {
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  if (mask.rows == 0 || mask.columns == 0) return;
  if (!mask.q_document && !mask.from && !mask.until && consecutive(mask.q_at, mask.rows) &&
      consecutive(mask.k_at, mask.columns)) {
    return fill_sliding(mask, out, stride, seen);
  }
  for (int64_t r = 0; r < mask.rows; ++r) {
    T* row = out + r * stride;
    const int64_t i = mask.q_at[r];
    const int64_t low = mask.from && mask.from[r] > 0 ? mask.from[r] : 0, high = mask.until ? mask.until[r] : INT64_MAX;
    unsigned any = 0;
    for (int64_t c = 0; c < mask.columns; ++c) {
      const int64_t j = mask.k_at[c], distance = i - j;
      unsigned see = (i >= 0) & (j >= low) & (j < high) & (distance >= mask.nearest) & (distance <= mask.farthest);
      if (mask.q_document) see &= mask.q_document[r] == mask.k_document[c];
      any |= see;
      row[c] = see ? T(0) : kNever;
    }
    if (any) seen[r] = 1;
    if (any && mask.table) {
      for (int64_t c = 0; c < mask.columns; ++c)
        if (row[c] == T(0)) row[c] = mask.table[i - mask.k_at[c] - mask.lowest];
    }
  }
}

template void fill_attend_mask<float>(const AttendMask<float>&, float*, int64_t, uint8_t*);
template void fill_attend_mask<double>(const AttendMask<double>&, double*, int64_t, uint8_t*);

}  // namespace kinfolk
