// A bias that depends on the distance alone: ALiBi, T5, KERPLE.
#pragma once
#include "kinfolk/nn/score/score.h"

namespace kinfolk {

/// score_ij += table_h(i - j). A derived class gives the table; it may have a gradient.
struct ByDistance : Score {
  /// [H, n] for int64 distances [n], of a floating type.
  virtual Tensor table(const Tensor& distance) const = 0;

  std::vector<Tensor> prepare(const Tensor& like, int64_t nearest, int64_t farthest) override;
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override;
  std::optional<DistanceTable> by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override;
};

/// Reads a table [H, n], whose column c is distance lowest + c, at the distances of a tile.  [B or 1, H, Lq, Lk]
Tensor read_by_distance(const Tensor& table, int64_t lowest, const Tensor& distance);

/// What `prepare` returns: the table of the distances in [nearest, farthest] and the lowest of them. It travels with
/// the tensors, since another call may prepare before this one is applied again.
std::vector<Tensor> with_lowest(const Tensor& table, int64_t lowest);

}  // namespace kinfolk
