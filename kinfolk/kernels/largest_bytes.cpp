#include "kinfolk/kernels/largest_bytes.h"

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

inline void search_bytes(const LargestSearch& s, float* scratch) {
  const int64_t quads = (s.width + 3) / 4, columns = (s.rows + kWide - 1) / kWide * kWide;
  auto* packed = reinterpret_cast<int32_t*>(scratch);  // [quads, columns]
  auto* list = reinterpret_cast<int32_t*>(scratch + s.width * kLargestRows);
  auto* bytes = reinterpret_cast<uint8_t*>(list + kBlock * kWide);  // [kBlock, quads * 4]
  Rounded query[kLargestRows];
  int32_t sums[kLargestRows], threshold[kLargestRows];
  for (int64_t i = 0; i < quads * columns; i++) packed[i] = 0;
  for (int64_t r = 0; r < columns; r++) {
    threshold[r] = INT32_MAX;  // of no query
    if (r >= s.rows) continue;
    for (int64_t i = 0; i < quads * 4; i++) bytes[i] = 0;
    sums[r] = 0;
    query[r] = round_rows(s.queries + r * s.width, 1, s.width, 0, bytes, quads * 4, sums + r, nullptr);
    for (int64_t i = 0; i < quads; i++) __builtin_memcpy(packed + i * columns + r, bytes + i * 4, 4);
  }
  for (int64_t i = 0; i < kBlock * quads * 4; i++) bytes[i] = 0;
  const double rounding = static_cast<double>(s.width + 16) * 6e-8;  // of a product in float, of the lengths' product
  for (int64_t from = 0; from < s.count; from += kBlock) {
    const int64_t count = s.count - from < kBlock ? s.count - from : kBlock;
    const float* keys = s.keys + (s.first + from) * s.width;
    // The machine's bytes are unsigned on one side: K + 128, and so 128 sum(Q) too much.
    const Rounded key = round_rows(keys, count, s.width, 128, bytes, quads * 4, nullptr, nullptr);
    for (int64_t r = 0; r < s.rows; r++) {
      const Rounded& own = query[r];
      const double bound = s.best[r].bound, k = key.length, q = own.length;
      const double error = error_of(own, key) + q * k * rounding;
      const double least = floor((bound - error) / (static_cast<double>(own.scale) * key.scale)) + 128.0 * sums[r];
      // All are looked at where bytes say nothing.
      const bool known = own.sound && key.sound && fabs(bound) < kLarge;
      threshold[r] = known ? static_cast<int32_t>(fmax(fmin(least, 2e9), -2e9)) : INT32_MIN;
    }
    Meeting meeting = meeting_of(bytes, nullptr, keys, count, s.width, (s.count - from - count) * s.width, packed,
                                 threshold, columns);
    for (int64_t part = 0; part < columns; part += kWide) {
      const int64_t found = reached(meeting, part, list);
      for (int64_t i = 0; i < found; i++) {
        const int64_t row = list[i] & 255, c = list[i] >> 8;
        Best<float>& best = s.best[row];
        const float score = product(s.queries + row * s.width, keys + c * s.width, s.width);
        if (score >= best.bound) offer_largest({score, s.first + from + c}, s.k, best);
      }
    }
  }
}

}  // namespace
#include "kinfolk/kernels/byte_products_end.h"

bool bytes_serve(const LargestSearch& s) {
  return multiplies_bytes() && s.rows >= 32 && s.count >= 1024 && s.width <= 16384 && !s.slots && !s.query_rows;
}
void search_largest_bytes(const LargestSearch& search, float* scratch) { search_bytes(search, scratch); }

#else
bool bytes_serve(const LargestSearch&) { return false; }
void search_largest_bytes(const LargestSearch&, float*) {}
#endif

}  // namespace kinfolk::kernels
