// The rotation that RoPE and its kin share.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kinfolk {
using at::Tensor;

/// f_t = base^(-2t/width), t = 0 .. width/2 - 1, radians a position (Su et al. 2021).
std::vector<double> rope_frequencies(double base, int64_t width);

/// Which dimensions form a pair and how fast each pair turns.
struct Rotation {
  std::vector<double> frequency;  ///< f_t, one a pair; twice as many dimensions turn, the first ones, the rest passes
  bool interleaved = false;       ///< pairs (2t, 2t + 1), the article's; else (t, t + pairs), LLaMA's
  double gain = 1;                ///< of the dimensions that turn

  int64_t pairs() const { return static_cast<int64_t>(frequency.size()); }
  /// x'_a = gain (x_a cos(p f_t) - x_b sin(p f_t)), x'_b = gain (x_b cos(p f_t) + x_a sin(p f_t)).
  /// x [B, H, L, d]; p double [B or 1, L], need not be whole. Phases are made in double and rounded once, to float32
  /// or double: lower types are rotated in float32.
  Tensor turn(const Tensor& x, const Tensor& p) const;
  /// The same with given angles; `size` multiplies each pair besides. Both double [B or 1, L, pairs].
  Tensor turn_by(const Tensor& x, const Tensor& angle, const Tensor& size = {}) const;
  /// x with each pair multiplied by `size`.
  Tensor sized(const Tensor& x, const Tensor& size) const;
  Tensor angles(const Tensor& p) const;  ///< p f_t, double [B or 1, L, pairs]
};

/// int64 [B, L]; [1, L] when all lanes agree, so that phases are made once.
Tensor shared_lanes(const Tensor& at);
/// The same as double.
Tensor turning_positions(const Tensor& at);

}  // namespace kinfolk
