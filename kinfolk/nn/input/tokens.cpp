#include "kinfolk/nn/input/tokens.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Tokens::Tokens(const Options& options, const Context& context)
    : path_(context.path), dropout_(options.dropout < 0 ? context.size.dropout : options.dropout) {
  const int64_t width = context.size.width;
  const double root = std::sqrt(static_cast<double>(width));
  scale_ = options.scale ? root : 1;
  table_ = register_parameter(
      "table", draw_parameter(context, {context.size.vocabulary, width}, options.scale ? 1 / root : 0.02));
  if (options.position != "none") {
    position_ = register_module(
        "position", std::make_shared<PositionTable>(context, options.position, options.base, options.layout));
  }
}

Traits Tokens::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.relative = !position_;
  traits.context = position_ ? position_->limit() : 0;
  if (traits.context) traits.why_not = text("learned positions end at ", traits.context, " tokens");
  return traits;
}

Tensor Tokens::embed(Pass& pass) {
  Tensor ids = mask_invalid(pass.batch.tokens, pass);  // [B, L]; what padding holds is nobody's business
  const int64_t vocabulary = table_.size(0);
  const int64_t lowest = ids.numel() ? ids.min().item<int64_t>() : 0,
                highest = ids.numel() ? ids.max().item<int64_t>() : 0;
  if (lowest < 0 || highest >= vocabulary) {
    fail("[", path_, "] expected token ids from 0 to ", vocabulary - 1, "; found ", lowest < 0 ? lowest : highest);
  }
  Tensor x = at::embedding(table_, ids);  // [B, L, D]
  if (scale_ != 1) x = x * scale_;
  if (position_) x = x + position_->look_up(pass, x.options());
  return dropout(x, dropout_, is_training(), pass);
}

}  // namespace kinfolk
