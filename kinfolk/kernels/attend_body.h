// Attention over tiles of 96 queries and 128 keys; included once for each instruction set. Scores are in units of
// log2, so that weights are powers of two.
#include "kinfolk/kernels/attend_tile_body.h"
//
#include "kinfolk/kernels/attend_span_body.h"

/// Rows [first, first + count) of a tile whose positions grow by one: their distances are one table, shifted.
/// Runs in which no row sees a key are left out: their distances may lie outside the tables.
template <class Body>
KINFOLK_INLINE void each_run(const QueryTile& q, const TileSight& sight, const Strip& strip, int64_t most,
                             const Body& body) {
  for (int64_t r = strip.row; r < strip.row + strip.rows;) {
    int64_t n = 1;
    bool any = sight.full || sight.low[r] < sight.high[r];
    while (n < most && r + n < strip.row + strip.rows && q.at[r + n] == q.at[r] + n) {
      any = any || sight.low[r + n] < sight.high[r + n];
      n++;
    }
    if (any) body(r, n);
    r += n;
  }
}

/// What both passes know of a call, a lane and a head.
struct Head {
  const Attend& a;
  int64_t width, value_width, by_width;  ///< padded to 16
  int64_t lane = -1, head = 0;
  std::vector<SetSight> sets;
  const float *table = nullptr, *factor = nullptr, *by_panels = nullptr, *by_rows = nullptr;
  uint64_t drop_words = 0;  ///< of the head

  explicit Head(const Attend& a)
      : a(a),
        width(attend_padded(a.width)),
        value_width(attend_padded(a.value_width)),
        by_width(attend_padded(a.by_width)) {}
  /// True: another lane.
  bool move(int64_t to_lane, int64_t to_head) {
    head = to_head;
    if (a.table) table = a.table + to_head * a.table_head;
    if (a.factor) factor = a.factor + to_head * a.factor_head;
    if (a.keep < 1) drop_words = drop_head(a.seed, a.head_name ? a.head_name[to_head] : to_head);
    if (a.by_panels) {
      by_panels = a.by_panels + to_head * attend_panels_size(a.distances, a.by_width);
      by_rows = a.by_rows + to_head * attend_rows_size(a.distances, a.by_width);
    }
    if (lane == to_lane) return false;
    lane = to_lane;
    sets = sight_of(a, lane);
    return true;
  }
  int64_t column(int64_t distance) const { return attend_column(a.lowest, a.distances, distance); }
  Tokens keys(size_t s, size_t band, int64_t group) const {
    const auto& k = a.sets[s].keys[band].k;
    return {k.at(lane, group), k.row, sets[s].index};
  }
  Tokens values(size_t s, int64_t group) const { return {a.sets[s].v.at(lane, group), a.sets[s].v.row, sets[s].index}; }

  /// Adds p_i . r_(i-j) to the scores of a strip; p [rows, by_width].
  void add_by(const QueryTile& q, const KeyTile& k, const TileSight& sight, const Strip& strip, const float* p,
              float* s) const {
    if (!sight.affine) return;  // then in the mask
    const int64_t panel = panel_stride(a.by_width);
    each_run(q, sight, strip, 6, [&](int64_t r, int64_t n) {
      const int64_t y = column(q.at[r] - k.at.low);  // of row r and column 0; a row below stands one before
      const int64_t begin = (y - (n - 1) + strip.begin) / 16 * 16, end = attend_padded(y + strip.end);
      panel_product<Into::add>(n, end - begin, a.by_width, p + r * by_width, by_width, by_panels, begin, panel,
                               s + r * kStride + begin - y, kStride + 1);
    });
  }

  /// Products of a strip times the factors of their distances.
  void scale(const QueryTile& q, const KeyTile& k, const TileSight& sight, const Strip& strip, float* s,
             float* raw) const {
    if (!factor) return;
    for (int64_t r = strip.row; r < strip.row + strip.rows; r++) {
      const RowSight row_sight = row(q, k, sight, r);
      if (row_sight.low >= row_sight.high) continue;
      scale_row(s + r * kStride, strip.begin, strip.end, row_sight.factor, a.floor, raw ? raw + r * kStride : nullptr);
    }
  }

  Fade fade(const QueryTile& q, int64_t r) const {
    return {a.ramp, a.own, a.span[(lane * a.heads + head) * a.length + q.first + r]};
  }
  /// Adds what spans say to the scores of a strip.
  void add_spans(const QueryTile& q, const KeyTile& k, size_t set, const TileSight& sight, const Strip& strip,
                 float* s) const {
    if (!a.span) return;
    for (int64_t r = strip.row; r < strip.row + strip.rows; r++) {
      float* line = s + r * kStride;
      if (q.at[r] < 0) continue;
      if (sight.affine) {
        fade(q, r).add(line, q.at[r] - k.at.low, strip.begin, strip.end);
      } else {
        for (int64_t c = 0; c < k.count; c++) fade(q, r).add_one(line[c], q.at[r] - sets[set].at[k.first + c]);
      }
    }
  }
  /// The gradient of the span of row r from those of its scores.
  float span_backward(const QueryTile& q, const KeyTile& k, size_t set, const TileSight& sight, const Strip& strip,
                      int64_t r, const float* ds) const {
    if (q.at[r] < 0) return 0;
    if (sight.affine) return fade(q, r).backward(ds, q.at[r] - k.at.low, strip.begin, strip.end);
    float sum = 0;
    for (int64_t c = 0; c < k.count; c++) {
      if (ds[c] != 0) sum += ds[c] * fade(q, r).slope(q.at[r] - sets[set].at[k.first + c]);
    }
    return sum;
  }

  /// Where columns are in any order: table and p . r go into the mask, pair by pair.
  void complete_mask(const QueryTile& q, const KeyTile& k, size_t set, TileSight& sight, const float* p) const {
    if (sight.affine || (!table && !by_rows && !factor)) return;
    if (factor) sight.factor.assign(sight.mask.size(), 0);
    const int64_t* at = sets[set].at + k.first;
    for (int64_t r = 0; r < q.count; r++) {
      float* mask = sight.mask.data() + r * kAttendColumns;
      for (int64_t c = 0; c < k.count; c++) {
        if (mask[c] != 0) continue;
        const int64_t y = column(q.at[r] - at[c]);
        if (table) mask[c] += table[y];
        if (factor) sight.factor[static_cast<size_t>(r * kAttendColumns + c)] = factor[y];
        if (by_rows) mask[c] += dot(p + r * by_width, by_rows + y * by_width, by_width);
      }
    }
  }

  /// Of a tile.
  void draw(const QueryTile& q, const KeyTile& k, size_t set, Drops& out) const {
    if (a.keep == 1) return;
    out.limit = a.drop_limit;
    const int64_t *queries = a.q_name.row(lane) + q.first, *keys = a.sets[set].name.row(lane);
    for (int64_t r = 0; r < q.count; r++) out.query[r] = drop_query(drop_words, queries[r]);
    for (int64_t c = 0; c < k.count; c++) {
      const int64_t j = sets[set].index ? sets[set].index[k.first + c] : k.first + c;
      const DropWords words = drop_key(keys[j]);
      out.key_a[c] = words.a, out.key_b[c] = words.b;
    }
  }

  /// Offset of a row's columns to the bins of values by distance.
  int64_t bin_offset(const QueryTile& q, const KeyTile& k, int64_t r) const {
    return a.value_highest - (q.at[r] - k.at.low);
  }
  /// Bin of a pair.
  int64_t bin(int64_t distance) const { return std::clamp<int64_t>(a.value_highest - distance, 0, a.value_bins - 1); }
  /// Adds a row of weights to its sums by bin.
  void add_bins(const QueryTile& q, const KeyTile& k, size_t set, const TileSight& sight, const Strip& strip, int64_t r,
                const float* w, float* to) const {
    if (sight.affine) return add_to_bins(w, strip.begin, strip.end, bin_offset(q, k, r), a.value_bins, to);
    const int64_t* at = sets[set].at + k.first;
    for (int64_t c = 0; c < k.count; c++) to[bin(q.at[r] - at[c])] += w[c];
  }

  RowSight row(const QueryTile& q, const KeyTile& k, const TileSight& sight, int64_t r) const {
    RowSight out;
    if (!sight.affine) {
      out.table = sight.mask.data() + r * kAttendColumns;
      if (factor) out.factor = sight.factor.data() + r * kAttendColumns;
      return out;
    }
    if (table && q.at[r] >= 0) out.table = table + column(q.at[r] - k.at.low);
    if (factor && q.at[r] >= 0) out.factor = factor + column(q.at[r] - k.at.low);
    if (!sight.full) out.low = sight.low[r], out.high = sight.high[r];
    if (sight.scattered) out.pairs = sight.pairs[r].data();
    return out;
  }
};

/// Calls f<table, part>() as a row needs it.
template <class F>
KINFOLK_INLINE void by_sight(const RowSight& sight, const Strip& strip, const F& f) {
  const Part part = sight.pairs                                         ? Part::pairs
                    : sight.low > strip.begin || sight.high < strip.end ? Part::range
                                                                        : Part::whole;
  const auto with = [&]<bool table>() {
    if (part == Part::pairs) {
      f.template operator()<table, Part::pairs>();
    } else if (part == Part::range) {
      f.template operator()<table, Part::range>();
    } else {
      f.template operator()<table, Part::whole>();
    }
  };
  sight.table ? with.template operator()<true>() : with.template operator()<false>();
}

/// Floats of scratch, aligned to a cache line.
class Scratch {
 public:
  float* take(int64_t floats, bool zero = false) {
    const auto bytes = static_cast<size_t>((std::max<int64_t>(floats, 1) * 4 + 63) / 64 * 64);
    held_.emplace_back(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!held_.back()) throw std::bad_alloc();
    if (zero) std::memset(held_.back().get(), 0, bytes);
    return held_.back().get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<float, Free>> held_;
};

#include "kinfolk/kernels/attend_forward_body.h"
//
#include "kinfolk/kernels/attend_backward_body.h"
