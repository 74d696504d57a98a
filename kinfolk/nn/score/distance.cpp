#include "kinfolk/nn/score/distance.h"

namespace kinfolk {

Distance::Distance(const Options&, const Context& context) {
  alpha = register_parameter("alpha", draw_parameter(context, {context.heads.count}, 0.02));
  beta = register_parameter("beta", fill_parameter(context, {context.heads.count}, 0));
}

Tensor Distance::factor(const Tensor& like, int64_t nearest, int64_t farthest) const {
  const Tensor distance =
      at::arange(nearest, farthest + 1, at::TensorOptions().dtype(at::kDouble).device(like.device())).abs();
  const Tensor a = alpha.to(at::kDouble).unsqueeze(1), b = beta.to(at::kDouble).unsqueeze(1);
  // ln f, so that no power overflows.
  return (at::softplus(b) - at::softplus(b - a * distance)).exp().to(like.options());  // [H, distances]
}

std::vector<Tensor> Distance::prepare(const Tensor& like, int64_t nearest, int64_t farthest) {
  return with_lowest(factor(like, nearest, farthest), nearest);
}

std::optional<DistanceFactor> Distance::scales_by_distance(const Tensor& like, int64_t nearest, int64_t farthest) {
  return DistanceFactor{factor(like, nearest, farthest), nearest, true};
}

Tensor Distance::apply(const Tile& tile, const std::vector<Tensor>& prepared) {
  return tile.scores.relu() * read_by_distance(prepared[0].to(tile.scores.scalar_type()), prepared[1].item<int64_t>(),
                                               tile.distance);  // [B, H, Lq, Lk]
}

}  // namespace kinfolk
