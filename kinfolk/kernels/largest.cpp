#include "kinfolk/kernels/largest.h"

#include <algorithm>

#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace {

constexpr int64_t kLargestKeys = 128, kLargestPart = 64;  // of a block of products: 32 KiB

template <class T>
void offer(Scored<T> key, int64_t k, Best<T>& best) {
  if (!(key.score >= best.bound)) return;
  best.keys[best.filled++] = key;
  if (best.filled < room_for(k)) return;
  std::nth_element(best.keys, best.keys + (k - 1), best.keys + best.filled, better<T>);
  best.filled = k;
  best.bound = best.keys[k - 1].score;
}

}  // namespace

void offer_largest(Scored<float> key, int64_t k, Best<float>& best) { offer(key, k, best); }
void offer_largest(Scored<double> key, int64_t k, Best<double>& best) { offer(key, k, best); }

namespace largest {
#define KINFOLK_BODY "kinfolk/kernels/largest_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace largest

void search_largest(const LargestSearch& search, float* scratch) {
  static const auto run = KINFOLK_PICK(largest, search);
  run(search, scratch);
}

int64_t largest_scratch(int64_t width) {
  return width * kLargestRows + kLargestKeys * kLargestPart + kLargestKeys * width;
}

}  // namespace kinfolk::kernels
