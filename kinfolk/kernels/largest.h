// The keys with the largest products with each query, found block by block.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// A key that may be among the best. Of two with equal scores the one with the smaller index comes first, whatever the
/// order of arrival.
template <class T>
struct Scored {
  T score;
  int64_t index;
};
template <class T>
inline bool better(const Scored<T>& a, const Scored<T>& b) {
  return a.score > b.score || (a.score == b.score && a.index < b.index);
}

/// Offers one key to the `k` best kept in `best` (a heap with the worst at its root, `filled` of them in use). A score
/// that is not a number is passed over.
void offer_largest(Scored<float> key, int64_t k, Scored<float>* best, int64_t& filled);
void offer_largest(Scored<double> key, int64_t k, Scored<double>* best, int64_t& filled);

/// One search: queries meet all keys of a list.
struct LargestSearch {
  const float* queries;  ///< row i at queries + (query_rows ? query_rows[i] : i) width
  const int32_t* query_rows;
  int64_t rows;
  const float* keys;  ///< key c at keys + (slots ? slots[c] : first + c) width
  const int32_t* slots;
  int64_t first, count;  ///< first: of keys that lie together
  int64_t width;
  int64_t k;
  Scored<float>* best;  ///< k of each query, at its row in `queries`
  int64_t* filled;      ///< the same
};

/// Offers every key of the list to every query. Nothing larger than a block of keys is written: scratch holds
/// largest_scratch(width) floats.
void search_largest(const LargestSearch& search, float* scratch);
int64_t largest_scratch(int64_t width);

}  // namespace kinfolk::kernels
