// Keeping the newest columns of every lane.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace kinfolk {
using at::Tensor;

/// Selects, lane by lane, the newest filled columns in their order, newest at the right end, empty ones (position -1)
/// at the left. Nothing is changed in place, and gradients flow through.
class Newest {
 public:
  /// at int64 [B, S]: positions, -1 empty. capacity: columns to keep; -1: as many as the fullest lane has.
  /// gaps: empty columns may stand behind filled ones; without, the last columns are taken as they are.
  Newest(const Tensor& at, int64_t capacity, bool gaps);
  /// t with its columns along `dim`, dim 0 the lanes. It holds no memory but that of its columns.
  Tensor keep(const Tensor& t, int64_t dim) const;
  /// The same without a copy where one column goes: for what `append` gave, so that the next column finds room.
  Tensor keep_room(const Tensor& t, int64_t dim) const;

 private:
  Tensor take(const Tensor& t, int64_t dim, int64_t spare) const;
  int64_t kept_;
  Tensor order_;  ///< int64 [B, kept]; undefined: the last ones
};

/// Columns of a lane from `position` on, in at int64 [B, C], become empty (-1).
Tensor emptied(const Tensor& at, int64_t lane, int64_t position);
/// Why the columns of a lane do not hold all keys in [from, to), or "". What lies before 0 is not needed.
std::string missing(const Tensor& at, int64_t lane, int64_t from, int64_t to);

}  // namespace kinfolk
