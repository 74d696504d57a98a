// The k smallest of a stream of scores, and their exact distances.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// A key that may be near. Ordered by distance, then by index: of two equally near keys the one with the smaller index
/// comes first, whatever the order of arrival.
struct Candidate {
  float distance;
  int64_t index;
};
inline bool operator<(const Candidate& a, const Candidate& b) {
  return a.distance < b.distance || (a.distance == b.distance && a.index < b.index);
}

/// Offers keys first .. first + columns - 1, with these products q.k and squares |k|^2, to the `k` best kept in `best`
/// (a heap by |k|^2 - 2 q.k, which orders keys like |q - k|^2, farthest at its root; `filled` of them in use). Returns
/// how many are in use afterwards. A score that is not a number is passed over.
int64_t keep_nearest(const float* products, const float* squares, int64_t columns, int64_t first, int64_t k,
                     Candidate* best, int64_t filled);

/// Squared distances |query - key|^2 of the candidates, summed in double (the expanded |q|^2 - 2 q.k + |k|^2, by which
/// they were found, cancels), and their order by them. keys [N, width], rows contiguous.
void refine_nearest(const float* query, const float* keys, int64_t width, Candidate* best, int64_t filled);

}  // namespace kinfolk::kernels
