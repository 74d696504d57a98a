// Products of small row-major tiles. No include guard: included once for each instruction set, in a namespace of its
// own, with KINFOLK_LANES floats a vector and KINFOLK_COLUMNS vectors across a register tile.

typedef float Lane __attribute__((vector_size(4 * KINFOLK_LANES)));
typedef float Loose __attribute__((vector_size(4 * KINFOLK_LANES), aligned(4), may_alias));
typedef float Quad __attribute__((vector_size(16)));
typedef float LooseQuad __attribute__((vector_size(16), aligned(4), may_alias));

KINFOLK_INLINE Lane load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
KINFOLK_INLINE void store(float* p, Lane v) { *reinterpret_cast<Loose*>(p) = v; }
KINFOLK_INLINE Lane all(float x) { return Lane{} + x; }

enum class Into { set, add, subtract };

/// A block of M x (N lanes) of C = A B; A is read with two strides, so that A and A^T cost the same.
template <int M, int N, Into into>
KINFOLK_INLINE void tile_block(int64_t depth, const float* a, int64_t row, int64_t step, const float* b, int64_t ldb,
                               float* c, int64_t ldc) {
  Lane sum[M][N];
  KINFOLK_UNROLL
  for (int m = 0; m < M; m++) {
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) sum[m][n] = into == Into::set ? Lane{} : load(c + m * ldc + n * KINFOLK_LANES);
  }
  for (int64_t i = 0; i < depth; i++) {
    Lane right[N];
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) right[n] = load(b + i * ldb + n * KINFOLK_LANES);
    KINFOLK_UNROLL
    for (int m = 0; m < M; m++) {
      const Lane left = all(a[m * row + i * step]);
      KINFOLK_UNROLL
      for (int n = 0; n < N; n++) {
        sum[m][n] = into == Into::subtract ? sum[m][n] - left * right[n] : sum[m][n] + left * right[n];
      }
    }
  }
  KINFOLK_UNROLL
  for (int m = 0; m < M; m++) {
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) store(c + m * ldc + n * KINFOLK_LANES, sum[m][n]);
  }
}

template <int N, Into into>
KINFOLK_INLINE void tile_columns(int64_t rows, int64_t depth, const float* a, int64_t row, int64_t step, const float* b,
                                 int64_t ldb, float* c, int64_t ldc) {
  int64_t m = 0;
  for (; m + 6 <= rows; m += 6) tile_block<6, N, into>(depth, a + m * row, row, step, b, ldb, c + m * ldc, ldc);
  for (; m + 4 <= rows; m += 4) tile_block<4, N, into>(depth, a + m * row, row, step, b, ldb, c + m * ldc, ldc);
  for (; m + 2 <= rows; m += 2) tile_block<2, N, into>(depth, a + m * row, row, step, b, ldb, c + m * ldc, ldc);
  for (; m < rows; m++) tile_block<1, N, into>(depth, a + m * row, row, step, b, ldb, c + m * ldc, ldc);
}

/// C [rows, columns] = A B, + or -; columns a multiple of 16; A(m, i) = a[m row + i step].
template <Into into>
KINFOLK_NOINLINE void product(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t row, int64_t step,
                              const float* b, int64_t ldb, float* c, int64_t ldc) {
  constexpr int64_t kWide = KINFOLK_COLUMNS * KINFOLK_LANES;
  int64_t n = 0;
  for (; n + kWide <= columns; n += kWide) {
    tile_columns<KINFOLK_COLUMNS, into>(rows, depth, a, row, step, b + n, ldb, c + n, ldc);
  }
  if constexpr (KINFOLK_COLUMNS > 2) {
    for (; n + 2 * KINFOLK_LANES <= columns; n += 2 * KINFOLK_LANES) {
      tile_columns<2, into>(rows, depth, a, row, step, b + n, ldb, c + n, ldc);
    }
  }
  for (; n < columns; n += KINFOLK_LANES) {
    tile_columns<1, into>(rows, depth, a, row, step, b + n, ldb, c + n, ldc);
  }
}

/// C [size, size] = A B, only where blocks of 16 columns touch the lower triangle.
inline void product_lower(int64_t size, int64_t depth, const float* a, const float* b, float* c) {
  for (int64_t i = 0; i < size; i += 16) {
    product<Into::set>(16, i + 16, depth, a + i * depth, depth, 1, b, size, c + i * size, size);
  }
}
/// C [size, columns] += T B for lower triangular T.
inline void add_lower(int64_t size, int64_t columns, const float* t, const float* b, float* c) {
  for (int64_t i = 0; i < size; i += 16) {
    product<Into::add>(16, columns, i + 16, t + i * size, size, 1, b, columns, c + i * columns, columns);
  }
}
/// C [size, columns] += T^T B for lower triangular T.
inline void add_lower_transposed(int64_t size, int64_t columns, const float* t, const float* b, float* c) {
  for (int64_t i = 0; i < size; i += 16) {
    product<Into::add>(16, columns, size - i, t + i * size + i, 1, size, b + i * columns, columns, c + i * columns,
                       columns);
  }
}
/// Zeroes what a block of 16 columns holds above the diagonal; with `strict` the diagonal too.
inline void clear_above(int64_t size, float* t, bool strict) {
  for (int64_t r = 0; r < size; r++) {
    for (int64_t c = strict ? r : r + 1; c < (r / 16 + 1) * 16; c++) t[r * size + c] = 0;
  }
}

/// to [columns, rows] = from [rows, columns]^T; both multiples of 4.
inline void transpose(int64_t rows, int64_t columns, const float* from, float* to) {
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < columns; c += 4) {
      const float* s = from + r * columns + c;
      const Quad a = *reinterpret_cast<const LooseQuad*>(s), b = *reinterpret_cast<const LooseQuad*>(s + columns),
                 d = *reinterpret_cast<const LooseQuad*>(s + 2 * columns),
                 e = *reinterpret_cast<const LooseQuad*>(s + 3 * columns);
      const Quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Quad de0 = __builtin_shufflevector(d, e, 0, 4, 1, 5), de1 = __builtin_shufflevector(d, e, 2, 6, 3, 7);
      float* t = to + c * rows + r;
      *reinterpret_cast<LooseQuad*>(t) = __builtin_shufflevector(ab0, de0, 0, 1, 4, 5);
      *reinterpret_cast<LooseQuad*>(t + rows) = __builtin_shufflevector(ab0, de0, 2, 3, 6, 7);
      *reinterpret_cast<LooseQuad*>(t + 2 * rows) = __builtin_shufflevector(ab1, de1, 0, 1, 4, 5);
      *reinterpret_cast<LooseQuad*>(t + 3 * rows) = __builtin_shufflevector(ab1, de1, 2, 3, 6, 7);
    }
  }
}

/// X <- (I + T)^-1 X for strictly lower T, by substitution: eight rows after the product with all rows above them.
inline void solve_lower(int64_t size, int64_t columns, const float* t, float* x) {
  for (int64_t b = 0; b < size; b += 8) {
    if (b > 0) product<Into::subtract>(8, columns, b, t + b * size, size, 1, x, columns, x + b * columns, columns);
    for (int64_t i = b + 1; i < b + 8; i++) {
      for (int64_t c = 0; c < columns; c += KINFOLK_LANES) {
        Lane sum = load(x + i * columns + c);
        for (int64_t j = b; j < i; j++) sum = sum - all(t[i * size + j]) * load(x + j * columns + c);
        store(x + i * columns + c, sum);
      }
    }
  }
}
/// X <- (I + T)^-T X.
inline void solve_lower_transposed(int64_t size, int64_t columns, const float* t, float* x) {
  for (int64_t b = size - 8; b >= 0; b -= 8) {
    const int64_t below = size - b - 8;
    if (below > 0) {
      product<Into::subtract>(8, columns, below, t + (b + 8) * size + b, 1, size, x + (b + 8) * columns, columns,
                              x + b * columns, columns);
    }
    for (int64_t i = b + 6; i >= b; i--) {
      for (int64_t c = 0; c < columns; c += KINFOLK_LANES) {
        Lane sum = load(x + i * columns + c);
        for (int64_t j = i + 1; j < b + 8; j++) sum = sum - all(t[j * size + i]) * load(x + j * columns + c);
        store(x + i * columns + c, sum);
      }
    }
  }
}
