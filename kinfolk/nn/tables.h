// Tables of sines and cosines of positions, shared by the input and by relative score steps.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace kinfolk {
using at::Tensor;

/// The angles p * base^(-2t/width), t = 0 .. ceil(width/2) - 1, of integer positions (any shape), always in double:
/// float32 would misplace phases beyond a few thousand positions, bfloat16 beyond 256.  [..., ceil(width/2)]
Tensor phases(const Tensor& positions, int64_t width, double base);

/// Sinusoidal encoding (Vaswani et al. 2017) of int64 positions of any shape, [...] -> [..., width] of type
/// `like.dtype()`. Layout "interleaved": column 2t is sin(phase t), 2t + 1 its cosine; "halves": all sines, then all
/// cosines (tensor2tensor, Transformer-XL). With an odd width the last sine has no cosine. Computed in double, rounded
/// once.
Tensor sinusoid(const Tensor& positions, int64_t width, double base, const std::string& layout, at::TensorOptions like);

}  // namespace kinfolk
