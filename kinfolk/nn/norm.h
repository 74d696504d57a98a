// Layer and root-mean-square normalisation over the last axis.
#pragma once
#include <torch/nn/module.h>

#include "kinfolk/nn/context.h"

namespace kinfolk {

/// kind "layer": (x - mean) / sqrt(var + eps) * weight + bias; kind "rms": x / sqrt(mean x^2 + eps) * weight.
/// affine = false: no weight, no bias.
struct Norm : torch::nn::Module {
  Norm(const Context& context, const std::string& kind, int64_t width, bool affine = true, double eps = 1e-5);
  Tensor forward(const Tensor& x) const;
  Tensor weight, bias;

 private:
  bool layer_;
  int64_t width_;
  double eps_;
};

}  // namespace kinfolk
