#include "kinfolk/nn/norm.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/rms_norm.h"

namespace kinfolk {

Norm::Norm(const Context& context, const std::string& kind, int64_t width, bool affine, double eps)
    : layer_(kind == "layer"), width_(width), eps_(eps) {
  if (kind != "layer" && kind != "rms") refuse("[", context.path, ".norm_kind] expected layer or rms; found ", kind);
  if (affine) weight = register_parameter("weight", fill_parameter(context, {width}, 1));
  if (affine && layer_) bias = register_parameter("bias", fill_parameter(context, {width}, 0));
}

Tensor Norm::forward(const Tensor& x) const {
  if (layer_) return at::layer_norm(x, {width_}, weight, bias, eps_);
  // Under autocast x may be bfloat16 beside a float32 weight, which rms_norm takes its slow path for.
  const Tensor wide = weight.defined() && x.scalar_type() != weight.scalar_type() ? x.to(weight.scalar_type()) : x;
  return rms_norm(wide, weight, eps_);
}

}  // namespace kinfolk
