#include "kinfolk/nn/norm.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Norm::Norm(const Context& context, const std::string& kind, int64_t width, bool affine, double eps)
    : layer_(kind == "layer"), width_(width), eps_(eps) {
  if (kind != "layer" && kind != "rms") refuse("[", context.path, ".norm_kind] expected layer or rms; found ", kind);
  if (affine) weight = register_parameter("weight", fill_parameter(context, {width}, 1));
  if (affine && layer_) bias = register_parameter("bias", fill_parameter(context, {width}, 0));
}

Tensor Norm::forward(const Tensor& x) const {
  if (layer_) return at::layer_norm(x, {width_}, weight, bias, eps_);
  return at::rms_norm(x, {width_}, weight, eps_);
}

}  // namespace kinfolk
