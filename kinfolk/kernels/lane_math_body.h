// Elementary functions of a vector. Included once for each instruction set, after tile_body.h.

typedef int32_t LaneInt __attribute__((vector_size(4 * KINFOLK_LANES)));

constexpr float kLog2OfE = 1.4426950408889634f, kLnOf2 = 0.6931471805599453f;

KINFOLK_INLINE Lane magnitude(Lane x) { return x < Lane{} ? -x : x; }
KINFOLK_INLINE float sum_of(Lane v) {
  float sum = 0;
  for (int i = 0; i < KINFOLK_LANES; i++) sum += v[i];
  return sum;
}

/// 2^x, 0 below the smallest normal number (denormals would cost an assist each), 2^127 above 127.
KINFOLK_INLINE Lane power_of_two(Lane x) {
  const LaneInt normal = x >= all(-126.f);
  x = normal ? x : all(-126.f);
  x = x > all(127.f) ? all(127.f) : x;
  const Lane shifted = x + all(12582912.f);  // the integer nearest to x, in the low bits
  const Lane f = x - (shifted - all(12582912.f));
  Lane p = all(1.5403530e-4f);
  p = p * f + all(1.3333558e-3f);
  p = p * f + all(9.6181291e-3f);
  p = p * f + all(5.5504109e-2f);
  p = p * f + all(2.4022651e-1f);
  p = p * f + all(6.9314718e-1f);
  p = p * f + all(1.f);
  const LaneInt bits = reinterpret_cast<LaneInt>(p) + (reinterpret_cast<LaneInt>(shifted) << 23);
  return normal ? reinterpret_cast<Lane>(bits) : Lane{};
}
KINFOLK_INLINE Lane exponential(Lane x) { return power_of_two(x * all(kLog2OfE)); }

/// sigmoid(x), from e = exp(-|x|).
KINFOLK_INLINE Lane sigmoid_from(Lane x, Lane e) {
  const Lane inverse = all(1.f) / (all(1.f) + e);
  return x >= Lane{} ? inverse : e * inverse;
}
KINFOLK_INLINE Lane sigmoid(Lane x) { return sigmoid_from(x, exponential(-magnitude(x))); }

/// log(1 + exp(x)), from e = exp(-|x|): max(x, 0) + 2 artanh(e / (e + 2)).
KINFOLK_INLINE Lane softplus_from(Lane x, Lane e) {
  const Lane t = e / (e + all(2.f)), square = t * t;
  Lane p = all(2.f / 13);
  p = p * square + all(2.f / 11);
  p = p * square + all(2.f / 9);
  p = p * square + all(2.f / 7);
  p = p * square + all(2.f / 5);
  p = p * square + all(2.f / 3);
  p = p * square + all(2.f);
  return (x > Lane{} ? x : Lane{}) + p * t;
}
