// The rotation that RoPE and its kin share.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace kinfolk {
using at::Tensor;

/// Which dimensions form a pair and how fast each pair turns.
struct Rotation {
  double base = 10000;
  bool interleaved = false;  ///< pairs (2t, 2t + 1), the article's; else (t, t + width/2), LLaMA's
  int64_t width = 0;         ///< dimensions that turn, the first ones; the rest passes through. 0: all

  /// x'_a = x_a cos(p f_t) - x_b sin(p f_t), x'_b = x_b cos(p f_t) + x_a sin(p f_t), f_t = base^(-2t/width).
  /// x [B, H, L, d]; p double [B or 1, L], need not be whole. Phases are made in double and rounded once, to float32
  /// or double: lower types are rotated in float32.
  Tensor turn(const Tensor& x, const Tensor& p) const;
};

/// int64 [B, L] as double; [1, L] when all lanes agree, so that phases are made once.
Tensor turning_positions(const Tensor& at);

}  // namespace kinfolk
