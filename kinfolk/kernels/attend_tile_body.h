// Pieces of the attention kernels: products against panels of 16 columns, exponentials, rows of scores. Included once
// for each instruction set, after tile_body.h.

typedef int32_t Count __attribute__((vector_size(4 * KINFOLK_LANES)));

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr int64_t kStride = kAttendColumns + 48;  ///< of a tile of scores: rows may be written beyond both ends
constexpr int64_t kTileFloats = kAttendRows * kStride + 96;

/// Floats from panel to panel of a matrix of `depth` rows: not a multiple of a page.
inline int64_t panel_stride(int64_t depth) { return depth * 16 + 16; }

template <int M, int N, Into into>
KINFOLK_INLINE void panel_block(int64_t depth, const float* a, int64_t row, const float* b, int64_t panel, float* c,
                                int64_t ldc) {
  Lane sum[M][N];
  KINFOLK_UNROLL
  for (int m = 0; m < M; m++) {
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) sum[m][n] = into == Into::set ? Lane{} : load(c + m * ldc + n * KINFOLK_LANES);
  }
  for (int64_t i = 0; i < depth; i++) {
    Lane right[N];
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) right[n] = load(b + i * 16 + (n * KINFOLK_LANES / 16) * panel + n * KINFOLK_LANES % 16);
    KINFOLK_UNROLL
    for (int m = 0; m < M; m++) {
      const Lane left = all(a[m * row + i]);
      KINFOLK_UNROLL
      for (int n = 0; n < N; n++) sum[m][n] = sum[m][n] + left * right[n];
    }
  }
  KINFOLK_UNROLL
  for (int m = 0; m < M; m++) {
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) store(c + m * ldc + n * KINFOLK_LANES, sum[m][n]);
  }
}

template <int N, Into into>
KINFOLK_INLINE void panel_columns(int64_t rows, int64_t depth, const float* a, int64_t row, const float* b,
                                  int64_t panel, float* c, int64_t ldc) {
  int64_t m = 0;
  for (; m + 6 <= rows; m += 6) panel_block<6, N, into>(depth, a + m * row, row, b, panel, c + m * ldc, ldc);
  for (; m + 4 <= rows; m += 4) panel_block<4, N, into>(depth, a + m * row, row, b, panel, c + m * ldc, ldc);
  for (; m + 2 <= rows; m += 2) panel_block<2, N, into>(depth, a + m * row, row, b, panel, c + m * ldc, ldc);
  for (; m < rows; m++) panel_block<1, N, into>(depth, a + m * row, row, b, panel, c + m * ldc, ldc);
}

/// C [rows, columns] = A B or += A B, B from column `first` of its panels on; first and columns multiples of 16.
template <Into into>
KINFOLK_NOINLINE void panel_product(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t row,
                                    const float* panels, int64_t first, int64_t panel, float* c, int64_t ldc) {
  constexpr int64_t kWide = KINFOLK_COLUMNS * KINFOLK_LANES;
  const auto at = [&](int64_t n) { return panels + (first + n) / 16 * panel + (first + n) % 16; };
  int64_t n = 0;
  for (; n + kWide <= columns; n += kWide) {
    panel_columns<KINFOLK_COLUMNS, into>(rows, depth, a, row, at(n), panel, c + n, ldc);
  }
  if constexpr (KINFOLK_COLUMNS > 2) {
    for (; n + 2 * KINFOLK_LANES <= columns; n += 2 * KINFOLK_LANES) {
      panel_columns<2, into>(rows, depth, a, row, at(n), panel, c + n, ldc);
    }
  }
  for (; n < columns; n += KINFOLK_LANES) panel_columns<1, into>(rows, depth, a, row, at(n), panel, c + n, ldc);
}

/// 2^x for x <= 0 or a little above, 0 below the smallest normal number: denormals would cost an assist each.
KINFOLK_INLINE Lane exp2_of(Lane x) {
  const Count normal = x >= all(-126.f);
  x = normal ? x : all(-126.f);
  const Lane shifted = x + all(12582912.f);  // the integer nearest to x, in the low bits
  const Lane f = x - (shifted - all(12582912.f));
  Lane p = all(1.5403530e-4f);
  p = p * f + all(1.3333558e-3f);
  p = p * f + all(9.6181291e-3f);
  p = p * f + all(5.5504109e-2f);
  p = p * f + all(2.4022651e-1f);
  p = p * f + all(6.9314718e-1f);
  p = p * f + all(1.f);
  const Count bits = reinterpret_cast<Count>(p) + (reinterpret_cast<Count>(shifted) << 23);
  return normal ? reinterpret_cast<Lane>(bits) : Lane{};
}

KINFOLK_INLINE Lane greater(Lane a, Lane b) { return a > b ? a : b; }

#if KINFOLK_LANES == 16
#define KINFOLK_HALVES(f, v)                                                                     \
  v = f(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
  v = f(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
  v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
  v = f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif KINFOLK_LANES == 8
#define KINFOLK_HALVES(f, v)                                       \
  v = f(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3)); \
  v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5)); \
  v = f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
#else
#define KINFOLK_HALVES(f, v)                           \
  v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1)); \
  v = f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
#endif
KINFOLK_INLINE Lane plus(Lane a, Lane b) { return a + b; }
KINFOLK_INLINE float greatest(Lane v) {
  KINFOLK_HALVES(greater, v)
  return v[0];
}
KINFOLK_INLINE float total(Lane v) {
  KINFOLK_HALVES(plus, v)
  return v[0];
}
#undef KINFOLK_HALVES

KINFOLK_INLINE Count iota() {
  Count c;
  for (int i = 0; i < KINFOLK_LANES; i++) c[i] = i;
  return c;
}

/// How a row of scores is changed before its softmax.
struct RowSight {
  const float* table = nullptr;   ///< added, by column
  const float* factor = nullptr;  ///< multiplied before, by column
  int32_t low = 0, high = INT32_MAX;
  const uint64_t* pairs = nullptr;  ///< of columns in [low, high) those whose bit is set; null: all
};
enum class Part { whole, range, pairs };

/// Columns [begin, end) of a row of products s become max(s, floor) factor; the former go to `raw`, if given.
inline void scale_row(float* s, int64_t begin, int64_t end, const float* factor, float floor, float* raw) {
  for (int64_t c = begin; c < end; c += KINFOLK_LANES) {
    const Lane v = greater(load(s + c), all(floor));
    if (raw) store(raw + c, v);
    store(s + c, v * load(factor + c));
  }
}
/// The gradient ds of the scaled scores becomes that of the products; adds that of factor to `sum`, if given.
inline void scale_row_backward(float* ds, int64_t begin, int64_t end, const float* factor, float floor,
                               const float* raw, float* sum) {
  for (int64_t c = begin; c < end; c += KINFOLK_LANES) {
    const Lane d = load(ds + c), v = load(raw + c);
    if (sum) store(sum + c, load(sum + c) + d * v * all(kLn2));
    store(ds + c, v > all(floor) ? d * load(factor + c) : Lane{});
  }
}

template <bool table, Part part>
KINFOLK_INLINE Lane score_at(const float* s, int64_t c, const RowSight& sight) {
  Lane v = load(s + c);
  if (table) v = v + load(sight.table + c);
  if (part == Part::pairs) {
    const Count bits = Count{} + static_cast<int32_t>(sight.pairs[c / 64] >> (c % 64));
    v = (bits & ((Count{} + 1) << iota())) != 0 ? v : all(kNever);
  }
  if (part == Part::range) {
    const Count at = iota() + static_cast<int32_t>(c);
    v = (at >= sight.low & at < sight.high) ? v : all(kNever);
  }
  return v;
}

/// Columns [begin, end) of a row s become 2^(s - m), m the highest of `highest` and theirs; returns m, adds to `sum`.
template <bool table, Part part>
KINFOLK_INLINE float softmax_row(float* s, int64_t begin, int64_t end, const RowSight& sight, float highest,
                                 float* sum) {
  Lane top = all(highest);
  for (int64_t c = begin; c < end; c += KINFOLK_LANES) {
    const Lane v = score_at<table, part>(s, c, sight);
    top = greater(v, top);
    if (table || part != Part::whole) store(s + c, v);
  }
  const float m = greatest(top);
  if (m == kNever) {
    for (int64_t c = begin; c < end; c += KINFOLK_LANES) store(s + c, Lane{});
    return m;
  }
  const Lane shift = all(m);
  Lane even = load(sum) * exp2_of(all(highest) - shift), odd = Lane{};
  for (int64_t c = begin; c < end; c += 2 * KINFOLK_LANES) {
    const Lane p = exp2_of(load(s + c) - shift);
    store(s + c, p);
    even = even + p;
    if (c + KINFOLK_LANES < end) {
      const Lane o = exp2_of(load(s + c + KINFOLK_LANES) - shift);
      store(s + c + KINFOLK_LANES, o);
      odd = odd + o;
    }
  }
  store(sum, even + odd);
  return m;
}

/// Columns [begin, end) of a row s become 2^(s - lse).
template <bool table, Part part>
KINFOLK_INLINE void weights_row(float* s, int64_t begin, int64_t end, const RowSight& sight, float lse) {
  const Lane shift = all(lse);
  for (int64_t c = begin; c < end; c += KINFOLK_LANES) {
    store(s + c, exp2_of(score_at<table, part>(s, c, sight) - shift));
  }
}

typedef uint32_t Words __attribute__((vector_size(4 * KINFOLK_LANES)));
typedef uint32_t LooseWords __attribute__((vector_size(4 * KINFOLK_LANES), aligned(4), may_alias));

/// Words of the queries and keys of a tile, from which dropped weights are drawn (attend_drop.h).
struct Drops {
  DropWords query[kAttendRows];
  uint32_t key_a[kAttendColumns] = {}, key_b[kAttendColumns] = {};
  int32_t limit = 0;
};
KINFOLK_INLINE Count dropped_at(const Drops& drops, const DropWords& query, int64_t c) {
  const Words key_a = *reinterpret_cast<const LooseWords*>(drops.key_a + c);
  const Words key_b = *reinterpret_cast<const LooseWords*>(drops.key_b + c);
  Words x = ((Words{} + query.a) ^ key_a) * kDropFirst;
  x = (x ^ (x >> 15)) + ((Words{} + query.b) ^ key_b);
  x = x * kDropSecond;
  x = (x ^ (x >> 13)) * kDropThird;
  return reinterpret_cast<Count>(x) < (Count{} + drops.limit);
}
/// Weights of row r in columns [begin, end): 0 where they are dropped.
KINFOLK_INLINE void drop_row(float* w, int64_t begin, int64_t end, const Drops& drops, int64_t r) {
  const DropWords query = drops.query[r];
  for (int64_t c = begin; c < end; c += KINFOLK_LANES) {
    store(w + c, dropped_at(drops, query, c) ? Lane{} : load(w + c));
  }
}

/// Of the columns [begin, end) of a row, column c belongs to bin clamp(offset + c, 0, bins - 1): f(column from, column
/// to, bin) for the two ends, each(column, bin) for those between.
template <class Ends, class Each>
KINFOLK_INLINE void by_bin(int64_t begin, int64_t end, int64_t offset, int64_t bins, const Ends& ends,
                           const Each& each) {
  const int64_t first = std::clamp(1 - offset, begin, end), last = std::clamp(bins - 1 - offset, first, end);
  if (begin < first) ends(begin, first, 0);
  for (int64_t c = first; c < last; c++) each(c, offset + c);
  if (last < end) ends(last, end, bins - 1);
}
inline float sum_of(const float* x, int64_t count) {
  Lane sum = Lane{};
  int64_t c = 0;
  for (; c + KINFOLK_LANES <= count; c += KINFOLK_LANES) sum = sum + load(x + c);
  float rest = total(sum);
  for (; c < count; c++) rest += x[c];
  return rest;
}
/// Adds the weights of a row to their bins.
inline void add_to_bins(const float* w, int64_t begin, int64_t end, int64_t offset, int64_t bins, float* to) {
  by_bin(
      begin, end, offset, bins,
      [&](int64_t from, int64_t end_of, int64_t b) { to[b] += sum_of(w + from, end_of - from); },
      [&](int64_t c, int64_t b) { to[b] += w[c]; });
}
/// Adds the number of its bin to every column of a row.
inline void add_from_bins(const float* from, int64_t begin, int64_t end, int64_t offset, int64_t bins, float* s) {
  by_bin(
      begin, end, offset, bins,
      [&](int64_t first, int64_t last, int64_t b) {
        for (int64_t c = first; c < last; c++) s[c] += from[b];
      },
      [&](int64_t c, int64_t b) { s[c] += from[b]; });
}

/// Rows of `count` tokens as they lie: of token j at data + (index ? index[j] : j) row.
struct Tokens {
  const float* data;
  int64_t row;
  const int64_t* index;
  const float* at(int64_t j) const { return data + (index ? index[j] : j) * row; }
};

/// Tokens first .. first + count - 1, `width` wide, as panels: column j of the transpose. Zeros up to a multiple of 16.
inline void pack_panels(const Tokens& tokens, int64_t first, int64_t count, int64_t width, int64_t panel, float* out) {
  alignas(64) float zeros[4] = {};
  for (int64_t p = 0; p < count; p += 16, out += panel) {
    for (int64_t j = 0; j < 16; j += 4) {
      const float* from[4];
      for (int64_t n = 0; n < 4; n++) from[n] = p + j + n < count ? tokens.at(first + p + j + n) : nullptr;
      int64_t i = 0;
      for (; i + 4 <= width; i += 4) {
        Quad x[4];
        for (int n = 0; n < 4; n++) x[n] = *reinterpret_cast<const LooseQuad*>(from[n] ? from[n] + i : zeros);
        const Quad ab0 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
        const Quad ab1 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
        const Quad cd0 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
        const Quad cd1 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
        float* t = out + i * 16 + j;
        *reinterpret_cast<LooseQuad*>(t) = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
        *reinterpret_cast<LooseQuad*>(t + 16) = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
        *reinterpret_cast<LooseQuad*>(t + 32) = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
        *reinterpret_cast<LooseQuad*>(t + 48) = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
      }
      for (; i < width; i++) {
        for (int n = 0; n < 4; n++) out[i * 16 + j + n] = from[n] ? from[n][i] : 0;
      }
    }
  }
}

/// Tokens as rows of `padded` floats, times factor; zeros behind `width`.
inline void pack_rows(const Tokens& tokens, int64_t first, int64_t count, int64_t width, int64_t padded, float factor,
                      float* out) {
  for (int64_t j = 0; j < count; j++, out += padded) {
    const float* from = tokens.at(first + j);
    int64_t i = 0;
    for (; i + KINFOLK_LANES <= width; i += KINFOLK_LANES) store(out + i, load(from + i) * all(factor));
    for (; i < width; i++) out[i] = from[i] * factor;
    for (; i < padded; i++) out[i] = 0;
  }
}

/// to [i] = from [i] factor, or += it.
inline void write_row(const float* from, int64_t width, float factor, bool add, float* to) {
  int64_t i = 0;
  for (; i + KINFOLK_LANES <= width; i += KINFOLK_LANES) {
    const Lane v = load(from + i) * all(factor);
    store(to + i, add ? load(to + i) + v : v);
  }
  for (; i < width; i++) to[i] = add ? to[i] + from[i] * factor : from[i] * factor;
}

inline float dot(const float* a, const float* b, int64_t padded) {
  Lane sum = Lane{};
  for (int64_t i = 0; i < padded; i += KINFOLK_LANES) sum = sum + load(a + i) * load(b + i);
  return total(sum);
}
