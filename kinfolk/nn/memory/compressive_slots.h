// What the parts of Compressive hand each other within a call.
#pragma once
#include "kinfolk/nn/memory/compressive.h"

namespace kinfolk {

/// t [B, S, ...] at columns int64 [B, ...n] -> [B, ...n, ...]
inline Tensor rows_at(const Tensor& t, const Tensor& columns) {
  const Tensor flat = columns.flatten(1);
  if (t.dim() == 2) return t.gather(1, flat).view(columns.sizes());
  auto sizes = columns.sizes().vec();
  sizes.push_back(t.size(2));
  return t.gather(1, flat.unsqueeze(-1).expand({-1, -1, t.size(2)})).view(sizes);
}

/// The smallest range [first, second) of columns that holds every true of bool [B, S]; [S, S) when there is none.
inline std::pair<int64_t, int64_t> filled_columns(const Tensor& wanted) {
  const Tensor columns = wanted.any(0).nonzero();
  if (columns.numel() == 0) return {wanted.size(1), wanted.size(1)};
  return {columns[0].item<int64_t>(), columns[-1].item<int64_t>() + 1};
}

/// The inputs of state and call. The compact ones stand without gaps at the right end.
struct Compressive::Rows {
  Tensor x, at, document, usage;  ///< [B, T, D], [B, T]; as the call has them
  Tensor compact_x, compact_at, compact_document, compact_usage;

  /// The columns of positions int64 [B, ...] in the compact ones, and whether they are there.
  std::pair<Tensor, Tensor> find(const Tensor& position) const {
    const Tensor newest = compact_at.select(1, -1);  // [B]
    const std::vector<int64_t> lanes = [&] {
      std::vector<int64_t> sizes(static_cast<size_t>(position.dim()), 1);
      sizes[0] = -1;
      return sizes;
    }();
    const Tensor column = compact_at.size(1) - 1 - (newest.view(lanes) - position);
    const Tensor there = column.ge(0).logical_and(position.ge(0)).logical_and(column.lt(compact_at.size(1)));
    const Tensor safe = column.clamp(0, compact_at.size(1) - 1);
    return {safe, there.logical_and(rows_at(compact_at, safe).eq(position))};
  }
};

/// What became of the inputs that left in a call: E times a lane.
struct Compressive::Made {
  Tensor rows, at, document, first, last;  ///< [B, n, D], int64 [B, n]: the new slots; at -1: none
  Leaving leaving;                         ///< of all lanes, [B E, P, ...]; undefined rows: nothing left
  Tensor slots;                            ///< [B E, P / c, D] with the gradient of the compression
  Tensor slot_document;                    ///< int64 [B E, P / c], -1 where mixed or none
  Tensor end;                              ///< int64 [B, E], ends of the segments
};

}  // namespace kinfolk
