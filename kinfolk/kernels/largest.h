// The keys with the largest products with each query, found block by block.
#pragma once
#include <cstdint>
#include <limits>

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

/// The best keys of one query so far: the k best are among `filled` of `room` entries, in no order. What scores below
/// `bound` is none of them.
template <class T>
struct Best {
  Scored<T>* keys;
  int64_t filled = 0;
  T bound = -std::numeric_limits<T>::infinity();
};
/// Entries that a query needs for its k best: more than k, so that they are sorted out rarely.
inline int64_t room_for(int64_t k) { return k + k / 2 + 16; }

/// Offers one key. A score that is not a number is passed over.
void offer_largest(Scored<float> key, int64_t k, Best<float>& best);
void offer_largest(Scored<double> key, int64_t k, Best<double>& best);

/// Queries of a search at most.
constexpr int64_t kLargestRows = 256;

/// One search: queries meet all keys of a list.
struct LargestSearch {
  const float* queries;  ///< row i at queries + (query_rows ? query_rows[i] : i) width
  const int32_t* query_rows;
  int64_t rows;       ///< at most kLargestRows
  const float* keys;  ///< key c at keys + (slots ? slots[c] : first + c) width
  const int32_t* slots;
  int64_t first, count;  ///< first: of keys that lie together
  int64_t width;
  int64_t k;
  Best<float>* best;  ///< of each query, at its row in `queries`
};

/// Offers every key of the list to every query. Nothing larger than a block of keys is written: scratch holds
/// largest_scratch(width) floats.
void search_largest(const LargestSearch& search, float* scratch);
int64_t largest_scratch(int64_t width);

}  // namespace kinfolk::kernels
