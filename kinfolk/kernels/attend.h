// Softmax attention in tiles with a streaming softmax, float32: forward and backward, several sets of keys, scores by
// distance and by query and distance, spans of queries.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "kinfolk/kernels/attend_pairs.h"

namespace kinfolk::kernels {

/// Rows of contiguous floats: of lane b, head h, token i at data + b lane + h head + i row.
template <class T>
struct Strided {
  T* data = nullptr;
  int64_t lane = 0, head = 0, row = 0;
  T* at(int64_t b, int64_t h) const { return data + b * lane + h * head; }
};
/// int64 [B, n], or nothing.
struct Whole {
  const int64_t* data = nullptr;
  int64_t lane = 0;
  const int64_t* row(int64_t b) const { return data ? data + b * lane : nullptr; }
};

/// Queries that meet the keys of the same band where nearest <= i - j <= farthest.
struct AttendBand {
  Strided<const float> q;  ///< [B, H, L, d]
  float scale = 1;
  int64_t nearest = INT64_MIN, farthest = INT64_MAX;
  Strided<float> dq;  ///< null: not wanted
};
struct AttendKeys {
  Strided<const float> k;  ///< [B, G, S, d]; null: nothing of the set is seen in this band
  Strided<float> dk;       ///< zeroed by the caller; null: not wanted
};

struct AttendSet {
  std::vector<AttendKeys> keys;  ///< one a band
  Strided<const float> v;        ///< [B, G, S, e]
  int64_t length = 0;
  Whole at, document;  ///< [B, S]; positions below 0 are never seen
  Whole name;          ///< [B, S], for dropout
  Whole from, until;   ///< [B, L]: from <= at < until
  Strided<float> dv;   ///< zeroed by the caller; null: not wanted
};

/// out_i = sum_j softmax_j(s_ij) v_j over the visible keys of all sets, lse_i = log sum_j exp(s_ij), with
/// s_ij = scale q_i . k_j + table[i - j] + by_scale p_i . r_(i-j) + ln m_i(i - j), q, k and scale those of the band
/// that the distance lies in, m_i(x) = clip((ramp + span_i - x) / ramp, 0, 1) where spans are given; with `value_rows`,
/// v_j + row of the distance in v_j's place; with `factor`, max(scale q_i . k_j, floor) factor[i - j] in the product's
/// place. A row that sees nothing: out 0, lse -inf.
struct Attend {
  int64_t batch = 0, heads = 0, groups = 0, length = 0, width = 0, value_width = 0;
  std::vector<AttendBand> bands;  ///< disjoint; other distances are not seen
  Whole q_at, q_document;
  std::vector<AttendSet> sets;
  const AttendPattern* pattern = nullptr;  ///< which pairs within the bands are seen; null: all
  const PairTiles* pairs = nullptr;        ///< of the pattern, if they were read

  // Scores by distance: the distances `lowest` to `lowest` + distances - 1, which hold those of all visible pairs.
  int64_t lowest = 0, distances = 0;
  const float* table = nullptr;  ///< as attend_pack_table makes it, a head after another
  int64_t table_head = 0;        ///< floats from head to head; 0: one for all

  const float* factor = nullptr;  ///< as attend_pack_table makes it, in units of 1
  int64_t factor_head = 0;
  float floor = 0;  ///< 0 or -inf

  Strided<const float> by;  ///< p [B, H, L, c]
  int64_t by_width = 0;
  float by_scale = 1;
  const float *by_panels = nullptr, *by_rows = nullptr;  ///< as attend_pack_by makes them, a head after another

  const float* span = nullptr;  ///< [B, H, L]
  float ramp = 1;
  bool own = true;  ///< with spans: the distance 0 is seen

  // What is added to values by distance: rows of the distances value_highest, value_highest - 1, ..., each of which
  // stands for those beyond at its end; the same for all heads.
  const float* value_rows = nullptr;  ///< [value_bins, e padded to 16]
  int64_t value_bins = 0, value_highest = 0;

  // Dropout of the weights (attend_drop.h): out_i = sum_j softmax_j kept_ij v_j / keep.
  float keep = 1;  ///< 1 - rate; 1: none
  int32_t drop_limit = 0;
  uint64_t seed = 0;
  Whole q_name;                        ///< [B, L]
  const int64_t* head_name = nullptr;  ///< [H]; null: 0, 1, ...

  Strided<float> out;    ///< [B, H, L, e]
  float* lse = nullptr;  ///< [B, H, L]

  // Backward: `out` and `lse` are read.
  Strided<const float> d_out;
  const float* d_lse = nullptr;   ///< [B, H, L] or null
  Strided<float> d_by;            ///< null: not wanted
  float* d_span = nullptr;        ///< [B, H, L], zeroed by the caller; null: not wanted
  float* d_table = nullptr;       ///< laid out like `table`, zeroed by the caller
  float* d_factor = nullptr;      ///< laid out like `factor`, zeroed by the caller
  float* d_by_rows = nullptr;     ///< laid out like `by_rows`, zeroed by the caller
  float* d_value_rows = nullptr;  ///< laid out like `value_rows`, zeroed by the caller
  std::mutex* lock = nullptr;     ///< held while those four are added to
};

constexpr int64_t kAttendRows = 96, kAttendColumns = 128;  ///< of a tile

/// Columns of a packed table: distances, farthest first, between margins of zeros.
int64_t attend_table_columns(int64_t distances);
constexpr int64_t kAttendMargin = kAttendRows + kAttendColumns + 32;
/// Column of distance t in a table of distances from `lowest` on.
inline int64_t attend_column(int64_t lowest, int64_t distances, int64_t t) {
  return kAttendMargin + lowest + distances - 1 - t;
}
inline int64_t attend_padded(int64_t width) { return (width + 15) / 16 * 16; }

/// table [distances] of one head -> columns, times `unit`: log2(e) for what is added to scores.
void attend_pack_table(const float* table, int64_t distances, float unit, float* out);
constexpr float kAttendLog2e = 1.4426950408889634f;
/// r [distances, c] of one head -> panels of 16 columns [c, 16], and rows [columns, c padded to 16].
int64_t attend_panels_size(int64_t distances, int64_t width);
int64_t attend_rows_size(int64_t distances, int64_t width);
void attend_pack_by(const float* r, int64_t row, int64_t distances, int64_t width, float* panels, float* rows);

/// Work is cut into items; any thread may take any range of them.
int64_t attend_forward_items(const Attend& a);
void attend_forward(const Attend& a, int64_t begin, int64_t end);
/// One item a lane and group.
int64_t attend_backward_items(const Attend& a);
void attend_backward(const Attend& a, int64_t begin, int64_t end);

}  // namespace kinfolk::kernels
