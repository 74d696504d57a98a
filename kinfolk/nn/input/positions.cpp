#include "kinfolk/nn/input/positions.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/tables.h"

namespace kinfolk {

PositionTable::PositionTable(const Context& context, const std::string& kind, double base, const std::string& layout)
    : path_(context.path), layout_(layout), width_(context.size.width), base_(base) {
  if (kind != "learned") return;
  limit_ = context.size.context;
  table_ = register_parameter("table", draw_parameter(context, {limit_, width_}, 0.02));
}

Tensor PositionTable::look_up(const Pass& pass, at::TensorOptions like) const {
  const Tensor at = pass.position.clamp_min(0);
  if (!table_.defined()) return sinusoid(at, width_, base_, layout_, like);
  const int64_t last = at.numel() ? at.max().item<int64_t>() : 0;
  if (last >= limit_) {
    fail("[", path_, ".position] expected positions below ", limit_,
         ", the length of the learned table (size.context); ", "found position ", last,
         ": this member cannot read past the length it was built for");
  }
  return at::embedding(table_, at);
}

PositionBranch::PositionBranch(const Options& options, const Context& context)
    : position_(register_module(
          "position", std::make_shared<PositionTable>(context, options.position, options.base, options.layout))) {}

Traits PositionBranch::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.context = position_->limit();
  if (traits.context) traits.why_not = text("learned positions end at ", traits.context, " tokens");
  return traits;
}

Tensor PositionBranch::forward(const Tensor& x, Pass& pass, State*) { return position_->look_up(pass, x.options()); }

}  // namespace kinfolk
