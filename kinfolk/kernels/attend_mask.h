// The additive mask of a tile of scores, from the positions of its queries and keys.
#pragma once
#include <cstdint>

namespace kinfolk {

/// Query r sees key c where both stand somewhere (position >= 0), nearest <= i - j <= farthest, their documents are
/// equal and from <= j < until. The mask there is table[i - j - lowest] (0 without a table), elsewhere -inf.
template <class T>
struct AttendMask {
  const int64_t *q_at = nullptr, *k_at = nullptr;              ///< [rows], [columns]; -1: invalid
  const int64_t *q_document = nullptr, *k_document = nullptr;  ///< [rows], [columns], or null: one document
  const int64_t *from = nullptr, *until = nullptr;             ///< [rows], or null: no limit
  int64_t rows = 0, columns = 0;
  int64_t nearest = INT64_MIN, farthest = INT64_MAX;
  const T* table = nullptr;  ///< of one head, or null; must cover every distance that is seen
  int64_t lowest = 0;        ///< the distance of table[0]
};

/// Writes out[r * stride + c]; sets seen[r] to 1 where the row sees a key and leaves it else.
template <class T>
void fill_attend_mask(const AttendMask<T>& mask, T* out, int64_t stride, uint8_t* seen);

/// Whether positions are at[0], at[0] + 1, ... and none is invalid.
bool consecutive(const int64_t* at, int64_t length);

}  // namespace kinfolk
