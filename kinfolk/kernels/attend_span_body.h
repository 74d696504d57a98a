// Scores of queries that look back as far as a span of their own, and fade over a ramp. Included once for each
// instruction set, after attend_tile_body.h.

/// log2 x of positive normal numbers.
KINFOLK_INLINE Lane log2_of(Lane x) {
  const Count bits = reinterpret_cast<Count>(x);
  const Count half = (Count{} + 0x3f3504f3);  // of the root of a half
  const Count exponent = (bits - half) >> 23;
  const Lane f = reinterpret_cast<Lane>(bits - (exponent << 23));  // in [sqrt(1/2), sqrt(2))
  const Lane s = (f - all(1.f)) / (f + all(1.f)), t = s * s;
  Lane p = all(1.f / 9);
  p = p * t + all(1.f / 7);
  p = p * t + all(1.f / 5);
  p = p * t + all(1.f / 3);
  p = p * t + all(1.f);
  return __builtin_convertvector(exponent, Lane) + s * p * all(2 * kLog2e);
}

/// The mask of a query, m(x) = clip((ramp + z - x) / ramp, 0, 1), at the distances of a row's columns.
struct Fade {
  static constexpr float kNone = 1e-30f;  // of m: what is no more is not seen
  float ramp;
  bool own;
  float z;
  /// (ramp + z - x) / ramp.
  float at(int64_t distance) const { return (ramp + z - static_cast<float>(distance)) / ramp; }
  /// First column with x <= z, for distances first - c.
  int64_t full(int64_t first, int64_t begin, int64_t end) const {
    const double column = std::ceil(static_cast<double>(first) - static_cast<double>(z));
    return column <= static_cast<double>(begin) ? begin
           : column >= static_cast<double>(end) ? end
                                                : static_cast<int64_t>(column);
  }
  /// Last column with x >= z + ramp, and one more.
  int64_t none(int64_t first, int64_t begin, int64_t end) const {
    const double column =
        std::floor(static_cast<double>(first) - static_cast<double>(z) - static_cast<double>(ramp)) + 1;
    return column <= static_cast<double>(begin) ? begin
           : column >= static_cast<double>(end) ? end
                                                : static_cast<int64_t>(column);
  }

  /// Adds log2 m to the scores in columns [begin, end), whose distances are first - c.
  void add(float* s, int64_t first, int64_t begin, int64_t end) const {
    const int64_t from = none(first, begin, end), to = full(first, from, end);
    for (int64_t c = begin; c < from; c++) s[c] = kNever;
    int64_t c = from;
    for (; c + KINFOLK_LANES <= to; c += KINFOLK_LANES) {
      const Lane x = all(static_cast<float>(first - c)) - __builtin_convertvector(iota(), Lane);
      const Lane m = (all(ramp + z) - x) / all(ramp);
      const Count some = m > all(kNone);
      store(s + c, some ? load(s + c) + log2_of(some ? m : all(1.f)) : all(kNever));
    }
    for (; c < to; c++) add_one(s[c], first - c);
    if (!own && first >= begin && first < end) s[first] = kNever;
  }
  void add_one(float& s, int64_t distance) const {
    const float m = at(distance);
    if (m < 1) s = m > kNone ? s + std::log2(m) : kNever;
    if (!own && distance == 0) s = kNever;
  }
  /// d ln m / dz at a distance.
  float slope(int64_t distance) const {
    const float left = ramp + z - static_cast<float>(distance);
    return left / ramp > kNone && left <= ramp ? 1 / left : 0;
  }
  /// The gradient of z from those of the scores, ds, in columns whose distances are first - c.
  float backward(const float* ds, int64_t first, int64_t begin, int64_t end) const {
    float sum = 0;
    const int64_t from = none(first, begin, end);
    for (int64_t c = from, to = full(first, from, end); c < to; c++) {
      if (ds[c] != 0) sum += ds[c] * slope(first - c);
    }
    return sum;
  }
};
