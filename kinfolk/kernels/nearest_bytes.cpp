#include "kinfolk/kernels/nearest_bytes.h"

#include "kinfolk/kernels/isa.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#endif

namespace kinfolk::kernels {

#if defined(__x86_64__)
#include "kinfolk/kernels/byte_products_begin.h"
//
namespace {
#include "kinfolk/kernels/byte_products_body.h"

constexpr double kStart = 1e9;  // of what products begin with, beside which the products have room

/// to [count, width] = rows - centre.
inline void move(const float* rows, int64_t count, int64_t width, const float* centre, float* to) {
  for (int64_t r = 0; r < count; r++) {
    for (int64_t i = 0; i < width; i += 16) {
      const __mmask16 mask = lanes(width - i);
      const __m512 x = _mm512_maskz_loadu_ps(mask, rows + r * width + i);
      _mm512_mask_storeu_ps(to + r * width + i, mask, _mm512_sub_ps(x, _mm512_maskz_loadu_ps(mask, centre + i)));
    }
  }
}

inline double squared_distance(const float* a, const float* b, int64_t width) {
  __m512d sum = _mm512_setzero_pd();
  for (int64_t i = 0; i < width; i += 8) {
    const auto mask = static_cast<__mmask8>(lanes(width - i));
    const __m512d left = _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, a + i));
    const __m512d off = _mm512_sub_pd(left, _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, b + i)));
    sum = _mm512_fmadd_pd(off, off, sum);
  }
  return _mm512_reduce_add_pd(sum);
}

// With q and k less the centre, |q - k|^2 = |q|^2 + |k|^2 - 2 q k stays at most R only where
//   q k - |k|^2 / 2 >= (|q|^2 - R) / 2.
// The left side begins, as a whole number in units of a c, with -|k|^2 / 2, and Q K is added; so the queries of a tile
// share their scale a.
inline void search_near(const NearestSearch& s, float* scratch) {
  const int64_t quads = (s.width + 3) / 4, columns = (s.rows + kWide - 1) / kWide * kWide, parts = columns / kWide;
  auto* packed = reinterpret_cast<int32_t*>(scratch);                               // [quads, columns]
  int32_t* list = packed + quads * kLargestRows;                                    // [kBlock, kWide]
  auto* bytes = reinterpret_cast<uint8_t*>(list + kBlock * kWide);                  // [kBlock, quads * 4]
  float* moved = scratch + quads * kLargestRows + kBlock * kWide + kBlock * quads;  // [kBlock, width]
  Rounded query[kLargestRows / kWide];
  int32_t sums[kLargestRows], threshold[kLargestRows], start[kBlock];
  float query_square[kLargestRows], key_square[kBlock];
  for (int64_t i = 0; i < kBlock * quads * 4; i++) bytes[i] = 0;
  for (int64_t p = 0; p < parts; p++) {
    const int64_t first = p * kWide, rows = s.rows - first < kWide ? s.rows - first : kWide;
    move(s.queries + first * s.width, rows, s.width, s.centre, moved);
    query[p] = round_rows(moved, rows, s.width, 0, bytes, quads * 4, sums + first, query_square + first);
    for (int64_t r = 0; r < kWide; r++) {
      for (int64_t i = 0; i < quads; i++) {
        int32_t four = 0;
        if (r < rows && query[p].sound) __builtin_memcpy(&four, bytes + (r * quads + i) * 4, 4);
        packed[i * columns + first + r] = four;
      }
    }
  }
  const double rounding = static_cast<double>(s.width + 16) * 6e-8;  // of squares and products in float
  for (int64_t from = 0; from < s.count; from += kBlock) {
    const int64_t count = s.count - from < kBlock ? s.count - from : kBlock;
    const float* keys = s.keys + from * s.width;
    move(keys, count, s.width, s.centre, moved);
    // The machine's bytes are unsigned on one side: K + 128, and so 128 sum(Q) too much.
    const Rounded key = round_rows(moved, count, s.width, 128, bytes, quads * 4, nullptr, key_square);
    Meeting meeting =
        meeting_of(bytes, start, keys, count, s.width, (s.count - from - count) * s.width, packed, threshold, columns);
    for (int64_t p = 0; p < parts; p++) {
      const Rounded& own = query[p];
      const double unit = static_cast<double>(own.scale) * key.scale, q = own.length, k = key.length;
      const bool sound = own.sound && key.sound && k * k / unit < kStart;
      for (int64_t c = 0; c < kBlock; c++) {
        start[c] = sound && c < count ? static_cast<int32_t>(floor(-0.5 * key_square[c] / unit)) + 1 : 0;
      }
      const double error = error_of(own, key) + (q + k) * (q + k) * rounding;
      for (int64_t r = p * kWide; r < (p + 1) * kWide; r++) {
        threshold[r] = INT32_MAX;  // of no query
        if (r >= s.rows) continue;
        const double most = -1.000001 * s.best[r].bound;
        // All are looked at where bytes say nothing.
        threshold[r] = INT32_MIN;
        if (!sound || !(fabs(most) < kLarge)) continue;
        const double least = floor((0.5 * (query_square[r] - most) - error) / unit) + 128.0 * sums[r];
        threshold[r] = static_cast<int32_t>(fmax(fmin(least, 2e9), -2e9));
      }
      const int64_t found = reached(meeting, p * kWide, list);
      for (int64_t i = 0; i < found; i++) {
        const int64_t row = list[i] & 255, c = list[i] >> 8;
        Best<float>& best = s.best[row];
        const auto score =
            static_cast<float>(-squared_distance(s.queries + row * s.width, keys + c * s.width, s.width));
        if (score >= best.bound) offer_largest({score, s.first + from + c}, s.k, best);
      }
    }
  }
}

}  // namespace
#include "kinfolk/kernels/byte_products_end.h"

bool bytes_serve_nearest(int64_t rows, int64_t count, int64_t width) {
  return multiplies_bytes() && rows >= 32 && count >= 1024 && width <= 8192;
}
void search_nearest_bytes(const NearestSearch& search, float* scratch) { search_near(search, scratch); }
int64_t nearest_scratch(int64_t width) {
  const int64_t quads = (width + 3) / 4;
  return quads * kLargestRows + kBlock * kWide + kBlock * quads + kBlock * width;
}

#else
bool bytes_serve_nearest(int64_t, int64_t, int64_t) { return false; }
void search_nearest_bytes(const NearestSearch&, float*) {}
int64_t nearest_scratch(int64_t) { return 0; }
#endif

}  // namespace kinfolk::kernels
