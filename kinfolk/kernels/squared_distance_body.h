// Squared distances of rows; included once for each instruction set, after tile_body.h. Two sums at once, since one
// would wait for itself.

typedef uint16_t Halves __attribute__((vector_size(2 * KINFOLK_LANES), aligned(2), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * KINFOLK_LANES)));

struct Float32 {
  KINFOLK_INLINE Lane lanes(const void* row, int64_t i) { return load(static_cast<const float*>(row) + i); }
  KINFOLK_INLINE float one(const void* row, int64_t i) { return static_cast<const float*>(row)[i]; }
};
struct Bfloat16 {
  KINFOLK_INLINE Lane lanes(const void* row, int64_t i) {
    const Halves half = *reinterpret_cast<const Halves*>(static_cast<const uint16_t*>(row) + i);
    return reinterpret_cast<Lane>(__builtin_convertvector(half, Words) << 16);
  }
  KINFOLK_INLINE float one(const void* row, int64_t i) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(static_cast<const uint16_t*>(row)[i]) << 16);
  }
};
/// Exponent and fraction moved to where float32 has them are the number times 2^-112, subnormals included.
struct Float16 {
  KINFOLK_INLINE Lane lanes(const void* row, int64_t i) {
    const Words half =
        __builtin_convertvector(*reinterpret_cast<const Halves*>(static_cast<const uint16_t*>(row) + i), Words);
    const Lane size = reinterpret_cast<Lane>((half & 0x7fff) << 13) * all(0x1p112f);
    return reinterpret_cast<Lane>(reinterpret_cast<Words>(size) | (half & 0x8000) << 16);
  }
  KINFOLK_INLINE float one(const void* row, int64_t i) {
    const uint32_t half = static_cast<const uint16_t*>(row)[i];
    const float size = __builtin_bit_cast(float, (half & 0x7fff) << 13) * 0x1p112f;
    return half & 0x8000 ? -size : size;
  }
};

template <class Type>
KINFOLK_INLINE float distance_of(const void* a, const void* b, int64_t width) {
  Lane first = {}, second = {};
  int64_t i = 0;
  for (; i + 2 * KINFOLK_LANES <= width; i += 2 * KINFOLK_LANES) {
    const Lane x = Type::lanes(a, i) - Type::lanes(b, i);
    const Lane y = Type::lanes(a, i + KINFOLK_LANES) - Type::lanes(b, i + KINFOLK_LANES);
    first = first + x * x;
    second = second + y * y;
  }
  for (; i + KINFOLK_LANES <= width; i += KINFOLK_LANES) {
    const Lane x = Type::lanes(a, i) - Type::lanes(b, i);
    first = first + x * x;
  }
  const Lane both = first + second;
  float sum = 0;
  for (int lane = 0; lane < KINFOLK_LANES; lane++) sum += both[lane];
  for (; i < width; i++) {
    const float x = Type::one(a, i) - Type::one(b, i);
    sum += x * x;
  }
  return sum;
}

float of_float32(const void* a, const void* b, int64_t width) { return distance_of<Float32>(a, b, width); }
float of_float16(const void* a, const void* b, int64_t width) { return distance_of<Float16>(a, b, width); }
float of_bfloat16(const void* a, const void* b, int64_t width) { return distance_of<Bfloat16>(a, b, width); }
