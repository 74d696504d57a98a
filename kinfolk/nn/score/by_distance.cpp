#include "kinfolk/nn/score/by_distance.h"

namespace kinfolk {

std::vector<Tensor> with_lowest(const Tensor& table, int64_t lowest) {
  return {table, at::full({}, lowest, at::TensorOptions().dtype(at::kLong))};
}

Tensor read_by_distance(const Tensor& table, int64_t lowest, const Tensor& distance) {
  const int64_t known = table.size(1), batch = distance.size(0), rows = distance.size(2), columns = distance.size(3);
  const Tensor column = (distance - lowest).clamp(0, known - 1).flatten();  // pairs out of sight go anywhere
  return table.index_select(1, column).view({-1, batch, rows, columns}).transpose(0, 1);
}

std::vector<Tensor> ByDistance::prepare(const Tensor& like, int64_t nearest, int64_t farthest) {
  return with_lowest(by_distance(like, nearest, farthest)->table, nearest);
}

Tensor ByDistance::apply(const Tile& tile, const std::vector<Tensor>& prepared) {
  return tile.scores + read_by_distance(prepared[0].to(tile.scores.scalar_type()), prepared[1].item<int64_t>(),
                                        tile.distance);  // [B, H, Lq, Lk]
}

std::optional<DistanceTable> ByDistance::by_distance(const Tensor& like, int64_t nearest, int64_t farthest) {
  const Tensor distance = at::arange(nearest, farthest + 1, at::TensorOptions().dtype(at::kLong).device(like.device()));
  return DistanceTable{table(distance).to(like.options()), nearest};  // [H, distances]
}

}  // namespace kinfolk
