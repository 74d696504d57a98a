#include "kinfolk/kernels/largest.h"

#include <algorithm>

#include "kinfolk/kernels/isa.h"
#include "kinfolk/kernels/largest_bytes.h"

namespace kinfolk::kernels {
namespace {

constexpr int64_t kLargestKeys = 128, kLargestPart = 64;  // of a block of products: 32 KiB

/// Moves the k best of `filled` entries to the front where some score parts them from the others, found by halving: the
/// loops have no branches that data decides. False where it is not found soon, as with equal scores at the border.
template <class T>
bool part(Scored<T>* keys, int64_t filled, int64_t k) {
  constexpr int64_t kMost = 2048;
  constexpr int kHalvings = 24;
  if (filled > kMost) return false;
  T scores[kMost], low = keys[0].score, high = low;
  for (int64_t i = 0; i < filled; i++) {
    scores[i] = keys[i].score;
    low = std::min(low, scores[i]), high = std::max(high, scores[i]);
  }
  for (int step = 0; step < kHalvings; step++) {
    const T middle = low + (high - low) / 2;
    int count = 0;
    for (int64_t i = 0; i < filled; i++) count += scores[i] >= middle;
    if (count == k) {
      int64_t kept = 0;
      for (int64_t i = 0; i < filled; i++) {
        keys[kept] = keys[i];
        kept += scores[i] >= middle;
      }
      return true;
    }
    (count > k ? low : high) = middle;
  }
  return false;
}

template <class T>
void offer(Scored<T> key, int64_t k, Best<T>& best) {
  if (!(key.score >= best.bound)) return;
  best.keys[best.filled++] = key;
  if (best.filled < room_for(k)) return;
  if (!part(best.keys, best.filled, k)) {
    std::nth_element(best.keys, best.keys + (k - 1), best.keys + best.filled, better<T>);
  }
  best.filled = k;
  best.bound = best.keys[0].score;
  for (int64_t i = 1; i < k; i++) best.bound = std::min(best.bound, best.keys[i].score);
}

}  // namespace

void offer_largest(Scored<float> key, int64_t k, Best<float>& best) { offer(key, k, best); }
void offer_largest(Scored<double> key, int64_t k, Best<double>& best) { offer(key, k, best); }

namespace largest {
#define KINFOLK_BODY "kinfolk/kernels/largest_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace largest

void search_largest(const LargestSearch& search, float* scratch) {
  if (bytes_serve(search)) return search_largest_bytes(search, scratch);
  static const auto run = KINFOLK_PICK(largest, search);
  run(search, scratch);
}

int64_t largest_scratch(int64_t width) {
  return width * kLargestRows + kLargestKeys * kLargestPart + kLargestKeys * width;
}

}  // namespace kinfolk::kernels
