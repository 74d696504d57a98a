// nearest: exact search for the k nearest keys of each query.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinfolk {
using at::Tensor;

struct Nearest {
  Tensor index;     ///< int64 [M, k], nearest first; of equally near keys the smaller index first; -1: no further key
  Tensor distance;  ///< float32 [M, k], squared; infinite where index is -1
};

/// The k keys with the smallest |q - key|^2 for each query. queries [M, D] and keys [N, D], taken as float32 on the
/// CPU; key_squares [N]: |key|^2, made when undefined. No gradient passes. Memory beyond the result: M k and one block
/// of products (2 MB). Candidates are found by blocked products, a few more than k, and put in order by exact
/// distances.
Nearest nearest(const Tensor& queries, const Tensor& keys, int64_t k, const Tensor& key_squares = {});

}  // namespace kinfolk
