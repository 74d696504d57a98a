// Products of bytes that say which products of floats may be large. No include guard: for files that are compiled for
// the machine's widest byte products, within a namespace of their own.

// Let q = a Q + e and k = c K + f with whole Q, K of at most 127. Then q k = a c Q K + e k + a Q f, and so
//   |q k - a c Q K| <= |e| |k| + (|q| + |e|) |f|
// in Euclidean lengths. A key whose Q K stays below (bound - that) / (a c) cannot reach the bound.

constexpr int64_t kBlock = 126, kHigh = 6, kWide = 64;  // keys of a block and of a tile, queries of a tile
constexpr float kLeast = 1e-15F, kMost = 1e15F;         // of scales: their squares are numbers too
constexpr double kLarge = 1e30;                         // of bounds: above it they may be infinite
constexpr double kSlack = 1.001;                        // of errors that are computed in float themselves

/// Rows that became bytes: their scale, and at most how long they and their errors are.
struct Rounded {
  float scale = 0, length = 0, error = 0;
  bool sound = false;  ///< all numbers finite, the scale such that bytes tell something
};

/// How far a c Q K may be from q k, for any row of each.
inline double error_of(const Rounded& q, const Rounded& k) {
  const double e = q.error, f = k.error;
  return (e * k.length + (q.length + e) * f) * kSlack;
}

inline __mmask16 lanes(int64_t left) { return static_cast<__mmask16>(left >= 16 ? 0xffff : (1U << left) - 1); }

/// rows [count, width] to bytes, one of them every `stride`, `plus` added to each byte. Where they are wanted, sums of
/// their bytes, and squares of their lengths.
inline Rounded round_rows(const float* rows, int64_t count, int64_t width, int plus, uint8_t* to, int64_t stride,
                          int32_t* sums, float* squares) {
  Rounded out;
  __m512 most = _mm512_setzero_ps();
  __mmask16 odd = 0;
  for (int64_t i = 0; i < count * width; i += 16) {
    const __m512 x = _mm512_maskz_loadu_ps(lanes(count * width - i), rows + i);
    odd |= _mm512_fpclass_ps_mask(x, 0x99);  // not a number, infinite
    most = _mm512_max_ps(most, _mm512_abs_ps(x));
  }
  out.scale = _mm512_reduce_max_ps(most) / 127;
  out.sound = odd == 0 && out.scale > kLeast && out.scale < kMost;
  if (!out.sound) return out;
  const __m512 scale = _mm512_set1_ps(out.scale), inverse = _mm512_set1_ps(1 / out.scale);
  float square = 0, error = 0;
  for (int64_t r = 0; r < count; r++) {
    __m512 lost = _mm512_setzero_ps(), whole = _mm512_setzero_ps();
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < width; i += 16) {
      const __mmask16 mask = lanes(width - i);
      const __m512 x = _mm512_maskz_loadu_ps(mask, rows + r * width + i);
      const __m512i bytes = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
      const __m512 off = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(bytes), scale, x);
      lost = _mm512_fmadd_ps(off, off, lost);
      whole = _mm512_fmadd_ps(x, x, whole);
      sum = _mm512_add_epi32(sum, bytes);
      const __m128i narrow = _mm512_cvtepi32_epi8(_mm512_add_epi32(bytes, _mm512_set1_epi32(plus)));
      _mm_mask_storeu_epi8(to + r * stride + i, mask, narrow);
    }
    const float own_error = _mm512_reduce_add_ps(lost), own_square = _mm512_reduce_add_ps(whole);
    error = own_error > error ? own_error : error;
    square = own_square > square ? own_square : square;
    if (squares) squares[r] = own_square;
    if (sums) sums[r] = _mm512_reduce_add_epi32(sum);
  }
  out.error = sqrtf(error);
  out.length = sqrtf(square);
  return out;
}

inline float product(const float* a, const float* b, int64_t width) {
  __m512 sum = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) sum = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), sum);
  if (i < width) {
    const __mmask16 mask = lanes(width - i);
    sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, a + i), _mm512_maskz_loadu_ps(mask, b + i), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

/// Bytes of keys and queries that meet.
struct Meeting {
  const uint8_t* keys;   ///< [count, quads * 4], up to a whole number of tiles
  const int32_t* start;  ///< [count] added to each key's products; null: nothing
  int64_t count, quads;
  const int32_t* queries;    ///< [quads, columns]
  const int32_t* threshold;  ///< of each query
  int64_t columns;
  const char* next;  ///< to be read next, and how much of it beside each tile
  int64_t share;
};

/// A block of keys [count, width] with `more` floats behind them, which are fetched beside the tiles of the block.
inline Meeting meeting_of(const uint8_t* bytes, const int32_t* start, const float* keys, int64_t count, int64_t width,
                          int64_t more, const int32_t* queries, const int32_t* threshold, int64_t columns) {
  const int64_t tiles = kBlock / kHigh * (columns / kWide), ahead = kBlock * width < more ? kBlock * width : more;
  const int64_t lines = (ahead * 4 + 63) / 64;
  return {bytes,
          start,
          count,
          (width + 3) / 4,
          queries,
          threshold,
          columns,
          reinterpret_cast<const char*>(keys + count * width),
          (lines + tiles - 1) / tiles * 64};
}

/// Writes (key, query) of each product that reaches the query's threshold, key * 256 + query; their number.
inline int64_t reached(Meeting& m, int64_t first, int32_t* list) {
  __m512i least[4];
  KINFOLK_UNROLL
  for (int n = 0; n < 4; n++) least[n] = _mm512_loadu_si512(m.threshold + first + 16 * n);
  int64_t found = 0;
  for (int64_t from = 0; from < m.count; from += kHigh) {
    for (int64_t i = 0; i < m.share; i += 64) _mm_prefetch(m.next + i, _MM_HINT_T1);
    m.next += m.share;
    __m512i sum[kHigh][4];
    KINFOLK_UNROLL
    for (int h = 0; h < kHigh; h++) {
      KINFOLK_UNROLL
      for (int n = 0; n < 4; n++) sum[h][n] = _mm512_set1_epi32(m.start ? m.start[from + h] : 0);
    }
    const uint8_t* own = m.keys + from * m.quads * 4;
    for (int64_t i = 0; i < m.quads; i++) {
      __m512i right[4];
      KINFOLK_UNROLL
      for (int n = 0; n < 4; n++) right[n] = _mm512_loadu_si512(m.queries + i * m.columns + first + 16 * n);
      KINFOLK_UNROLL
      for (int h = 0; h < kHigh; h++) {
        int32_t four = 0;
        __builtin_memcpy(&four, own + (h * m.quads + i) * 4, 4);
        const __m512i left = _mm512_set1_epi32(four);
        KINFOLK_UNROLL
        for (int n = 0; n < 4; n++) sum[h][n] = _mm512_dpbusd_epi32(sum[h][n], left, right[n]);
      }
    }
    uint64_t large[kHigh];
    KINFOLK_UNROLL
    for (int h = 0; h < kHigh; h++) {
      __mmask16 reach[4];
      KINFOLK_UNROLL
      for (int n = 0; n < 4; n++) reach[n] = _mm512_cmpge_epi32_mask(sum[h][n], least[n]);
      large[h] = _mm512_kunpackd(_mm512_kunpackw(reach[3], reach[2]), _mm512_kunpackw(reach[1], reach[0]));
    }
    const int64_t held = m.count - from < kHigh ? m.count - from : kHigh;
    for (int64_t h = 0; h < held; h++) {
      for (uint64_t left = large[h]; left != 0; left &= left - 1) {
        list[found++] = static_cast<int32_t>((from + h) * 256 + first + __builtin_ctzll(left));
      }
    }
  }
  return found;
}
