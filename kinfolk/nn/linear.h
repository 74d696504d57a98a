// y = x W^T + b, W [out, in], as torch stores it.
#pragma once
#include <torch/nn/module.h>

#include "kinfolk/nn/context.h"

namespace kinfolk {

struct Linear : torch::nn::Module {
  /// W is normal with standard deviation `gain` / sqrt(in); b starts at zero.
  Linear(const Context& context, int64_t in, int64_t out, bool bias = true, double gain = 1.0);
  Tensor forward(const Tensor& x) const;
  double flops(int64_t rows) const { return 2.0 * static_cast<double>(rows) * weight.size(0) * weight.size(1); }
  Tensor weight, bias;
};

}  // namespace kinfolk
