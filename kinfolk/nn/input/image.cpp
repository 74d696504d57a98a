#include "kinfolk/nn/input/image.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/tables.h"

namespace kinfolk {

Image::Image(const Options& options, const Context& context)
    : path_(context.path),
      kind_(options.position),
      layout_(options.layout),
      grid_{options.rows, options.columns},
      dropout_(options.dropout < 0 ? context.size.dropout : options.dropout),
      base_(options.base),
      width_(context.size.width) {
  const double root = std::sqrt(static_cast<double>(width_));
  if (options.rows > (int64_t{1} << 24) / options.columns) {
    refuse("[", path_, "] expected at most ", int64_t{1} << 24, " pixels an image; found ", options.rows, " x ",
           options.columns);
  }
  if (options.order == "block") grid_.block_rows = options.height, grid_.block_columns = options.width;
  order_ = grid_.order();
  scale_ = options.scale ? root : 1;
  table_ = register_parameter(
      "table", draw_parameter(context, {context.size.vocabulary, width_}, options.scale ? 1 / root : 0.02));
  if (kind_ != "learned") return;
  row_ = register_parameter("row", draw_parameter(context, {grid_.rows, width_}, 0.02));
  column_ = register_parameter("column", draw_parameter(context, {grid_.columns, width_}, 0.02));
}

Traits Image::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.relative = kind_ == "none";
  return traits;
}

Tensor Image::place(const Tensor& position) const {
  const Tensor order = at::tensor(order_, at::kLong).to(position.device());
  const Tensor at = position.clamp_min(0).remainder(grid_.pixels());  // [B, L]
  const Tensor raster = order.index_select(0, at.flatten()).view(at.sizes());
  return at::stack({raster.div(grid_.columns, "floor"), raster.remainder(grid_.columns)}, -1);  // [B, L, 2]
}

Tensor Image::embed(Pass& pass) {
  const Tensor ids = mask_invalid(pass.batch.tokens, pass);  // [B, L]
  const int64_t vocabulary = table_.size(0);
  const int64_t lowest = ids.numel() ? ids.min().item<int64_t>() : 0,
                highest = ids.numel() ? ids.max().item<int64_t>() : 0;
  if (lowest < 0 || highest >= vocabulary) {
    fail("[", path_, "] expected levels and a start token from 0 to ", vocabulary - 1, "; found ",
         lowest < 0 ? lowest : highest);
  }
  Tensor x = at::embedding(table_, ids);  // [B, L, D]
  if (scale_ != 1) x = x * scale_;
  if (kind_ != "none") {
    const Tensor at = place(pass.position);
    const Tensor row = at.select(-1, 0), column = at.select(-1, 1);
    if (kind_ == "learned") {
      x = x + at::embedding(row_, row) + at::embedding(column_, column);
    } else {
      const int64_t half = width_ / 2;
      const auto sines = [&](const Tensor& of, int64_t width) {
        return sinusoid(of, width, base_, layout_, x.options());
      };
      Tensor both = sines(column, width_ - half);
      if (half > 0) both = at::cat({sines(row, half), both}, -1);
      x = x + both;
    }
  }
  return dropout(x, dropout_, is_training(), pass);
}

}  // namespace kinfolk
