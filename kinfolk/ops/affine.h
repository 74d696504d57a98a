// y = x W^T + b, by whichever of torch's two libraries has the faster kernel on this processor.
#pragma once
#include <ATen/core/Tensor.h>

namespace kinfolk {
using at::Tensor;

/// x [..., in], weight [out, in], bias [out] or undefined -> [..., out], differentiable once.
/// MKL gives processors of other makers than Intel its AVX2 kernels whatever they can do; oneDNN compiles for what is
/// there. So float32 products of 16 rows and more go to oneDNN on those that have AVX-512; everything else is
/// at::linear. The choice depends on the processor, the type and the shape alone, never on a measurement: runs repeat.
Tensor affine(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// Whether such a product goes to oneDNN, if the processor gains by it (`anywhere`: on any that has it, for tests).
bool affine_by_onednn(const Tensor& x, const Tensor& weight, bool anywhere = false);
/// That path itself.
Tensor affine_onednn(const Tensor& x, const Tensor& weight, const Tensor& bias);

}  // namespace kinfolk
