#include "kinfolk/kernels/largest.h"

#include <algorithm>

#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace {

constexpr int64_t kLargestKeys = 128, kLargestRows = 48;  // of a block of products: 24 KiB

template <class T>
void offer(Scored<T> key, int64_t k, Scored<T>* best, int64_t& filled) {
  if (!(key.score == key.score)) return;
  if (filled < k) {
    best[filled++] = key;
    std::push_heap(best, best + filled, better<T>);
    return;
  }
  if (!better(key, best[0])) return;
  std::pop_heap(best, best + filled, better<T>);
  best[filled - 1] = key;
  std::push_heap(best, best + filled, better<T>);
}

}  // namespace

void offer_largest(Scored<float> key, int64_t k, Scored<float>* best, int64_t& filled) { offer(key, k, best, filled); }
void offer_largest(Scored<double> key, int64_t k, Scored<double>* best, int64_t& filled) {
  offer(key, k, best, filled);
}

namespace largest {
#define KINFOLK_BODY "kinfolk/kernels/largest_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace largest

void search_largest(const LargestSearch& search, float* scratch) {
  static const auto run = KINFOLK_PICK(largest, search);
  run(search, scratch);
}

int64_t largest_scratch(int64_t width) {
  return width * kLargestKeys + kLargestRows * kLargestKeys + kLargestRows * width;
}

}  // namespace kinfolk::kernels
