#include "kinfolk/nn/length/windows.h"

namespace kinfolk {

LengthSlots WindowLength::project(const Tensor& given, const Tensor& seen) const {
  const int64_t n = given.size(2), s = slots(n), missing = s * ratio_ - n;
  Tensor rows = seen_rows(given, seen), there = seen;
  if (!there.defined()) there = at::ones({1, n}, given.options().dtype(at::kBool).requires_grad(false));
  if (missing > 0) {
    rows = at::constant_pad_nd(rows, {0, 0, 0, missing});
    there = at::constant_pad_nd(there, {0, missing});
  }
  const Tensor windows = there.unflatten(1, {s, ratio_});  // [B or 1, s, ratio]
  const Tensor slots = reduce(rows.unflatten(2, {s, ratio_}), windows.unsqueeze(1).unsqueeze(-1));
  return {slots, seen.defined() ? windows.any(2) : Tensor()};
}

Tensor MeanLength::reduce(const Tensor& rows, const Tensor& seen) const {
  return rows.sum(3) / seen.sum(3).clamp_min(1).to(rows.scalar_type());
}

Tensor MaxLength::reduce(const Tensor& rows, const Tensor& seen) const {
  const Tensor largest = rows.masked_fill(seen.logical_not(), -INFINITY).amax(3);  // [B, H, s, d]
  return largest.masked_fill(seen.any(3).logical_not(), 0);
}

ConvLength::ConvLength(const Options& options, const Context& context) : WindowLength(options) {
  const int64_t d = context.heads.width;
  weight = register_parameter(
      "weight", draw_parameter(context, {d, d, options.ratio}, 1 / std::sqrt(static_cast<double>(d * options.ratio))));
  bias = register_parameter("bias", fill_parameter(context, {d}, 0));
}

Tensor ConvLength::reduce(const Tensor& rows, const Tensor&) const {
  const Tensor taps = weight.permute({2, 1, 0}).flatten(0, 1);  // [ratio d, d]
  return at::matmul(rows.flatten(3), taps) + bias;
}

}  // namespace kinfolk
