// |a - b|^2 of two rows of one type, summed in float32.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

enum class KeyType { float32, float16, bfloat16 };

/// Both rows hold `width` numbers of the type, at any address that is a multiple of their size. Of float16 the largest
/// exponent counts as a number (65536 and above), not as infinity.
using SquaredDistance = float (*)(const void* a, const void* b, int64_t width);
SquaredDistance squared_distance(KeyType type);

}  // namespace kinfolk::kernels
