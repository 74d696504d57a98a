#include "kinfolk/nn/score/alibi.h"

namespace kinfolk {

Tensor alibi_slopes(int64_t heads) {
  if (heads < 1) fail("[alibi.heads] expected at least 1; found ", heads);
  int64_t whole = 1;
  while (whole * 2 <= heads) whole *= 2;
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const double exponent = h < whole ? -8.0 * (h + 1) / whole : -4.0 * (2 * (h - whole) + 1) / whole;
    slopes.push_back(std::exp2(exponent));
  }
  return at::tensor(slopes, at::TensorOptions().dtype(at::kDouble));
}

Tensor Alibi::apply(const Tile& tile, const std::vector<Tensor>&) {
  const Tensor slopes = slopes_.to(tile.scores.options()).view({-1, 1, 1});  // [H, 1, 1]
  return tile.scores - slopes * tile.distance.abs();
}

std::optional<DistanceTable> Alibi::by_distance(const Tensor& like, int64_t nearest, int64_t farthest) {
  const Tensor distance = at::arange(nearest, farthest + 1, slopes_.options()).abs();
  return DistanceTable{(slopes_.unsqueeze(-1) * distance).neg().to(like.options()), nearest};  // [H, distances]
}

}  // namespace kinfolk
