// nearest: exact search for the k nearest keys of each query.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace kinfolk {
using at::Tensor;

struct Nearest {
  Tensor index;     ///< int64 [M, k], nearest first; of equally near keys the smaller index first; -1: no further key
  Tensor distance;  ///< float32 [M, k], squared; infinite where index is -1
};

/// The nearest keys among blocks of them that come one after another, as of a memory that is mapped from disk: what is
/// known of the keys met so far spares most of the work on later ones.
class NearestSoFar {
 public:
  /// queries [M, D], taken as float32 on the CPU.
  NearestSoFar(const Tensor& queries, int64_t k);
  ~NearestSoFar();
  /// Keys [N, D], taken alike, numbers first, first + 1, ..., larger than those before. key_squares [N]: |key|^2, made
  /// when undefined.
  void meet(const Tensor& keys, int64_t first, const Tensor& key_squares = {});
  Nearest found() const;

 private:
  struct Held;
  void meet_products(const Tensor& keys, const Tensor& met, const Tensor& squares, int64_t first);
  void meet_bytes(const Tensor& keys, int64_t first);
  std::unique_ptr<Held> held_;
};

/// The k keys with the smallest |q - key|^2 for each query. queries [M, D] and keys [N, D]. No gradient passes. Memory
/// beyond the result: some k for each query and one block of products (2 MB). Candidates are found by blocked products
/// (of bytes, with a bound on what they may be off, where the machine multiplies those faster), and put in order by
/// exact distances, summed in double.
Nearest nearest(const Tensor& queries, const Tensor& keys, int64_t k, const Tensor& key_squares = {});

}  // namespace kinfolk
