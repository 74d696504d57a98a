#include "kinfolk/nn/linear.h"

#include "kinfolk/ops/affine.h"

namespace kinfolk {

Linear::Linear(const Context& context, int64_t in, int64_t out, bool with_bias, double gain) {
  weight = register_parameter("weight", draw_parameter(context, {out, in}, gain / std::sqrt(static_cast<double>(in))));
  if (with_bias) bias = register_parameter("bias", fill_parameter(context, {out}, 0));
}

Tensor Linear::forward(const Tensor& x) const { return affine(x, weight, bias); }

}  // namespace kinfolk
