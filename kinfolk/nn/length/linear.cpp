#include "kinfolk/nn/length/linear.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Tensor seen_rows(const Tensor& rows, const Tensor& seen) {
  return seen.defined() ? rows.masked_fill(seen.logical_not().unsqueeze(1).unsqueeze(-1), 0) : rows;
}

LinearLength::LinearLength(const Options& options, const Context& context) {
  const int64_t heads = options.per_head ? context.heads.count : 1, longest = context.size.context;
  weight = register_parameter(
      "weight", draw_parameter(context, {heads, options.rank, longest}, 1 / std::sqrt(static_cast<double>(longest))));
}

double LinearLength::flops(int64_t length, int64_t width) const {
  return 2.0 * static_cast<double>(weight.size(1)) * static_cast<double>(length) * static_cast<double>(width);
}

LengthSlots LinearLength::project(const Tensor& given, const Tensor& seen) const {
  const int64_t n = given.size(2), heads = given.size(1);
  if (n > longest()) {
    fail("[linformer.project] expected at most ", longest(),
         " tokens, the columns of its matrix (size.context); found ", n);
  }
  const Tensor rows = seen_rows(given, seen), e = weight.narrow(2, 0, n);  // [1 or H, k, n]
  if (weight.size(0) > 1) return {at::matmul(e, rows)};
  const Tensor flat = at::matmul(e[0], rows.transpose(1, 2).flatten(2));  // [B, k, H d]
  return {flat.unflatten(2, {heads, given.size(3)}).transpose(1, 2)};
}

}  // namespace kinfolk
