#include "kinfolk/nn/score/xl.h"

#include "kinfolk/nn/tables.h"

namespace kinfolk {

Xl::Xl(const Options& options, const Context& context)
    : options_(options), width_(context.size.width), scale_(context.heads.scale) {
  const int64_t heads = context.heads.count, d = context.heads.width;
  r = register_module("r", std::make_shared<Linear>(context, width_, heads * d, false));
  v = register_parameter("v", draw_parameter(context, {heads, d}, 0.02));
}

std::vector<Tensor> Xl::prepare(const Tensor& like, int64_t nearest, int64_t farthest) {
  const auto whole = at::TensorOptions().dtype(at::kLong).device(like.device());
  Tensor distance = at::arange(nearest, farthest + 1, whole);
  if (options_.clamp > 0) distance = distance.clamp_max(options_.clamp);
  const Tensor table = r->forward(sinusoid(distance, width_, options_.base, "halves", r->weight.options()))
                           .unflatten(-1, {v.size(0), v.size(1)})
                           .permute({1, 2, 0});  // [H, d, distances]
  // The lowest distance travels with the tensors: another call may prepare before this one is applied again.
  return {table, v, at::full({}, nearest, at::TensorOptions().dtype(at::kLong))};
}

Tensor Xl::apply(const Tile& tile, const std::vector<Tensor>& prepared) {
  const int64_t lowest = prepared[2].item<int64_t>(), known = prepared[0].size(-1);
  const int64_t from = std::clamp<int64_t>(tile.nearest - lowest, 0, known - 1);
  const int64_t to = std::clamp<int64_t>(tile.farthest - lowest, from, known - 1);
  const auto type = tile.scores.scalar_type();
  const Tensor q = (tile.q.to(type) + prepared[1].to(type).unsqueeze(1)) * scale_;
  const Tensor all = at::matmul(q, prepared[0].to(type).narrow(-1, from, to - from + 1));  // [B, H, Lq, distances]
  const Tensor column = (tile.distance - (lowest + from)).clamp(0, to - from);  // pairs out of sight go anywhere
  return tile.scores + all.gather(-1, column.expand(tile.scores.sizes()));      // [B, H, Lq, Lk]
}

}  // namespace kinfolk
