// Random directions that feature maps look along.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinfolk {
using at::Tensor;

/// Rows w ~ N(0, I) [H, M, d] in double. `orthogonal`: the rows of each block of d (the last may be shorter) are
/// orthogonal, each with the length of an independent draw, so that every row alone is still N(0, I) (Choromanski et
/// al. 2021, section 3).
Tensor random_directions(int64_t heads, int64_t features, int64_t width, bool orthogonal,
                         const at::Generator& generator);

}  // namespace kinfolk
