#include "kinfolk/nn/score/shaw.h"

namespace kinfolk {

Shaw::Shaw(const Options& options, const Context& context)
    : clip_(options.clip), heads_(context.heads.count), scale_(context.heads.scale), causal_(context.heads.causal) {
  const std::vector<int64_t> sizes{2 * clip_ + 1, context.heads.width};
  wk = register_parameter("wk", draw_parameter(context, sizes, 0.02));
  if (options.values) wv = register_parameter("wv", draw_parameter(context, sizes, 0.02));
}

std::vector<Tensor> Shaw::prepare(const Tensor&, int64_t, int64_t) { return {wk}; }

Tensor Shaw::apply(const Tile& tile, const std::vector<Tensor>& prepared) {
  const auto type = tile.scores.scalar_type();
  const Tensor q = tile.q.narrow(-1, 0, wk.size(1)).to(type) * scale_;
  const Tensor all = at::matmul(q, prepared[0].to(type).t());  // [B, H, Lq, 2K + 1]
  const Tensor row = tile.distance.neg().clamp(-clip_, clip_) + clip_;
  return tile.scores + all.gather(-1, row.expand(tile.scores.sizes()));  // [B, H, Lq, Lk]
}

std::optional<QueryTable> Shaw::by_query(const Tensor& q_raw, int64_t nearest, int64_t farthest) {
  const Tensor distance = at::arange(nearest, farthest + 1, at::TensorOptions().dtype(at::kLong).device(wk.device()));
  const Tensor rows = wk.index_select(0, distance.neg().clamp(-clip_, clip_) + clip_);  // [distances, d]
  return QueryTable{q_raw.narrow(-1, 0, wk.size(1)), rows.to(q_raw.scalar_type()).unsqueeze(0).expand({heads_, -1, -1}),
                    scale_};
}

std::optional<DistanceValues> Shaw::adds_to_values() {
  if (!wv.defined()) return {};
  // By distance, nearest first; a causal branch meets no future. A meta tensor has a shape alone, and no order.
  const Tensor met = causal_ ? wv.narrow(0, 0, clip_ + 1) : wv;
  return DistanceValues{met.is_meta() ? met : met.flip(0), causal_ ? 0 : -clip_};
}

}  // namespace kinfolk
