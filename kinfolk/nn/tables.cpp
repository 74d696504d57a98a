#include "kinfolk/nn/tables.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Tensor phases(const Tensor& positions, int64_t width, double base) {
  if (width < 1) fail("[tables.width] expected at least 1; found ", width);
  const int64_t pairs = (width + 1) / 2;
  const Tensor exponent =
      at::arange(pairs, at::TensorOptions().dtype(at::kDouble).device(positions.device())) * (-2.0 / width);
  const Tensor frequency = at::pow(at::Scalar(base), exponent);
  return positions.to(at::kDouble).unsqueeze(-1) * frequency;  // [..., pairs]
}

Tensor sinusoid(const Tensor& positions, int64_t width, double base, const std::string& layout,
                at::TensorOptions like) {
  const Tensor angle = phases(positions, width, base);
  const Tensor sine = angle.sin(), cosine = angle.cos();
  Tensor table;
  if (layout == "interleaved") {
    table = at::stack({sine, cosine}, -1).flatten(-2).narrow(-1, 0, width);
  } else if (layout == "halves") {
    table = at::cat({sine, cosine.narrow(-1, 0, width / 2)}, -1);
  } else {
    fail("[tables.layout] expected one of interleaved halves; found ", layout);
  }
  return table.to(like);
}

}  // namespace kinfolk
