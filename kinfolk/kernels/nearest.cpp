#include "kinfolk/kernels/nearest.h"

#include <algorithm>

namespace kinfolk::kernels {

int64_t keep_nearest(const float* products, const float* squares, int64_t columns, int64_t first, int64_t k,
                     Candidate* best, int64_t filled) {
  const auto score = [&](int64_t c) { return squares[c] - 2 * products[c]; };
  int64_t column = 0;
  for (; column < columns && filled < k; ++column) {
    const float own = score(column);
    if (!(own == own)) continue;
    best[filled++] = {own, first + column};
    std::push_heap(best, best + filled);
  }
  constexpr int64_t kBlock = 64;
  for (; column < columns; column += kBlock) {
    const int64_t end = std::min(columns, column + kBlock);
    // Most blocks hold nothing near: one vector pass says so.
    const float bound = best[0].distance;
    int near = 0;
    for (int64_t c = column; c < end; ++c) near += score(c) <= bound;
    if (near == 0) continue;
    for (int64_t c = column; c < end; ++c) {
      const Candidate candidate{score(c), first + c};
      if (!(candidate < best[0])) continue;
      std::pop_heap(best, best + filled);
      best[filled - 1] = candidate;
      std::push_heap(best, best + filled);
    }
  }
  return filled;
}

void refine_nearest(const float* query, const float* keys, int64_t width, Candidate* best, int64_t filled) {
  for (int64_t i = 0; i < filled; ++i) {
    const float* key = keys + best[i].index * width;
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) {
      const double difference = static_cast<double>(query[c]) - static_cast<double>(key[c]);
      sum += difference * difference;
    }
    best[i].distance = static_cast<float>(sum);
  }
  std::sort(best, best + filled);
}

}  // namespace kinfolk::kernels
