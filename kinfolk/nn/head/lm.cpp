#include "kinfolk/nn/head/lm.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/affine.h"

namespace kinfolk {

LanguageModel::LanguageModel(const Options& options, const Context& context) {
  const auto& size = context.size;
  if (options.tied) {
    if (!context.tied.defined())
      refuse("[", context.path, ".tied] expected an input with a table of tokens; found none");
    weight_ = context.tied;  // the input's: not registered a second time
  } else {
    weight_ = register_parameter("weight", draw_parameter(context, {size.vocabulary, size.width},
                                                          1 / std::sqrt(static_cast<double>(size.width))));
  }
  if (options.bias) bias_ = register_parameter("bias", fill_parameter(context, {size.vocabulary}, 0));
}

Tensor LanguageModel::read(const Tensor& x, Pass&) { return affine(x, weight_, bias_); }  // [B, L, V]

double LanguageModel::flops(int64_t length) const {
  return 2.0 * static_cast<double>(length) * static_cast<double>(weight_.size(0)) *
         static_cast<double>(weight_.size(1));
}

}  // namespace kinfolk
