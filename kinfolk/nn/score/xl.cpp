#include "kinfolk/nn/score/xl.h"

#include "kinfolk/nn/tables.h"

namespace kinfolk {

Xl::Xl(const Options& options, const Context& context)
    : options_(options), width_(context.size.width), scale_(context.heads.scale) {
  const int64_t heads = context.heads.count, d = context.heads.width;
  r = register_module("r", std::make_shared<Linear>(context, width_, heads * d, false));
  v = register_parameter("v", draw_parameter(context, {heads, d}, 0.02));
}

/// r of the distances nearest to farthest.  [distances, H, d]
Tensor Xl::keys(int64_t nearest, int64_t farthest) {
  const auto options = r->weight.options();
  const int64_t end = first_ + (sinusoids_.defined() ? sinusoids_.size(0) : 0);
  if (!sinusoids_.defined() || nearest < first_ || farthest >= end || sinusoids_.dtype() != options.dtype() ||
      sinusoids_.device() != options.device()) {
    // Farther than asked for, so that a growing cache does not ask at every step.
    Tensor distance = at::arange(nearest, farthest + 1 + (farthest - nearest) / 4, options.dtype(at::kLong));
    if (options_.clamp > 0) distance = distance.clamp_max(options_.clamp);
    sinusoids_ = sinusoid(distance, width_, options_.base, "halves", options);
    first_ = nearest;
  }
  const Tensor rows = sinusoids_.narrow(0, nearest - first_, farthest - nearest + 1);
  return r->forward(rows).unflatten(-1, {v.size(0), v.size(1)});
}

std::vector<Tensor> Xl::prepare(const Tensor&, int64_t nearest, int64_t farthest) {
  // The lowest distance travels with the tensors: another call may prepare before this one is applied again.
  return {keys(nearest, farthest).permute({1, 2, 0}), v, at::full({}, nearest, at::TensorOptions().dtype(at::kLong))};
}

std::optional<QueryTable> Xl::by_query(const Tensor& q_raw, int64_t nearest, int64_t farthest) {
  const Tensor p = q_raw.narrow(-1, 0, v.size(1)).to(v.options()) + v.unsqueeze(1);  // [B, H, L, d]
  return QueryTable{p, keys(nearest, farthest).transpose(0, 1), scale_};
}

Tensor Xl::apply(const Tile& tile, const std::vector<Tensor>& prepared) {
  const int64_t lowest = prepared[2].item<int64_t>(), known = prepared[0].size(-1);
  const int64_t from = std::clamp<int64_t>(tile.nearest - lowest, 0, known - 1);
  const int64_t to = std::clamp<int64_t>(tile.farthest - lowest, from, known - 1);
  const auto type = tile.scores.scalar_type();
  const Tensor q = (tile.q.narrow(-1, 0, v.size(1)).to(type) + prepared[1].to(type).unsqueeze(1)) * scale_;
  const Tensor all = at::matmul(q, prepared[0].to(type).narrow(-1, from, to - from + 1));  // [B, H, Lq, distances]
  const Tensor column = (tile.distance - (lowest + from)).clamp(0, to - from);  // pairs out of sight go anywhere
  return tile.scores + all.gather(-1, column.expand(tile.scores.sizes()));      // [B, H, Lq, Lk]
}

}  // namespace kinfolk
