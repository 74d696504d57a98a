// Appending a call's columns to kept ones without copying those each time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kinfolk {
using at::Tensor;

/// A tensor of a state and what a call adds to it, columns along `dim` (1 or more).
struct Joint {
  Tensor kept, fresh;
  int64_t dim;
};

/// Each kept ++ fresh; the first are positions, int64 [B, C] and [B, L], at least -1. A result has free memory behind
/// it, about an eighth of its columns, and joining that result again writes there: the cost does not grow with C.
/// Columns are claimed once, through the positions (free ones hold -2), so that two states that share memory never
/// write over each other: the second copies. What a tensor shows is never changed. Where gradients are recorded, and
/// elsewhere than on the CPU, this is at::cat.
std::vector<Tensor> append(const std::vector<Joint>& parts);
/// Columns that the memory of so many joined ones has.
inline int64_t columns_held(int64_t columns) { return columns + columns / 8 + 8; }

}  // namespace kinfolk
