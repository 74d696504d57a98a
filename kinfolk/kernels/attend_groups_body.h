// Attention between groups, in tiles of 96 queries and 128 keys that are gathered from their tokens; included once for
// each instruction set. Scores are in units of log2.
#include "kinfolk/kernels/attend_tile_body.h"

/// Floats of scratch, aligned to a cache line.
class Scratch {
 public:
  float* take(int64_t floats) {
    const auto bytes = static_cast<size_t>((std::max<int64_t>(floats, 1) * 4 + 63) / 64 * 64);
    held_.emplace_back(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!held_.back()) throw std::bad_alloc();
    std::memset(held_.back().get(), 0, bytes);
    return held_.back().get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<float, Free>> held_;
};

/// Keys of a tile: their tokens, and for pairs that count once, in which group each round has them.
struct GroupKeys {
  int64_t index[kAttendColumns];
  alignas(64) int32_t token[kAttendColumns];
  std::vector<int32_t> of;  ///< [rounds, kAttendColumns]
  int64_t count = 0, columns = 0;
  int32_t first = 0;  ///< the smallest token

  void gather(const GroupLists& a) {
    columns = attend_padded(count);
    first = INT32_MAX;
    for (int64_t c = 0; c < count; c++) {
      index[c] = token[c];
      first = std::min(first, token[c]);
    }
    for (int64_t c = count; c < columns; c++) token[c] = -1;
    if (!a.once) return;
    of.resize(static_cast<size_t>(a.rounds * kAttendColumns));
    for (int64_t r = 0; r < a.rounds; r++)
      for (int64_t c = 0; c < count; c++)
        of[static_cast<size_t>(r * kAttendColumns + c)] = a.of[r * a.tokens + token[c]];
  }
};

typedef int32_t LooseCount __attribute__((vector_size(4 * KINFOLK_LANES), aligned(4), may_alias));

/// A row of scores: -inf where its query does not meet the key.
inline void mask_row(const GroupLists& a, const GroupKeys& k, int32_t i, int32_t round, bool behind, float* s) {
  const auto load_whole = [](const int32_t* p) -> Count { return *reinterpret_cast<const LooseCount*>(p); };
  const int32_t* checked[64];
  int32_t unlike[64];
  int checks = 0;
  if (a.once) {
    const auto rounds = static_cast<int32_t>(a.rounds);
    const auto check = [&](int32_t r, int32_t group) {
      if (group < 0 || checks == 64) return;
      checked[checks] = k.of.data() + r * kAttendColumns, unlike[checks++] = group;
    };
    for (int32_t r = 0; r < round + (a.across && behind ? 1 : 0); r++) {
      const int32_t mine = a.of[r * a.tokens + i], before = mine < 0 ? -1 : a.groups[mine].before;
      if (r < round) check(r, mine);
      check(r, before);
      if (a.across) check((r + rounds - 1) % rounds, before);
    }
  }
  for (int64_t c = 0; c < k.columns; c += KINFOLK_LANES) {
    const Count j = load_whole(k.token + c);
    Count seen = j >= 0;
    if (a.causal) seen &= j <= i;
    if (!a.own) seen &= j != i;
    for (int n = 0; n < checks; n++) seen &= load_whole(checked[n] + c) != unlike[n];
    store(s + c, seen ? load(s + c) : all(kNever));
  }
}

/// Calls f(keys, behind) for each tile of keys that a group's queries meet.
template <class F>
inline void each_keys(const GroupLists& a, const KeyGroup& group, GroupKeys& keys, const F& f) {
  const auto flush = [&](bool behind) {
    if (keys.count == 0) return;
    keys.gather(a);
    f(keys, behind);
    keys.count = 0;
  };
  const auto add = [&](const KeyGroup& from, bool behind) {
    for (int32_t n = 0; n < from.keys; n++) {
      keys.token[keys.count++] = a.key[from.key + n];
      if (keys.count == kAttendColumns) flush(behind);
    }
  };
  keys.count = 0;
  if (group.before >= 0) add(a.groups[group.before], false);
  if (a.across) flush(false);
  add(group, true);
  flush(true);
}

/// Queries of a tile.
struct GroupQueries {
  const int32_t *token, *slot;
  int64_t count;
  int32_t last;                ///< the largest token
  int64_t index[kAttendRows];  ///< rows of q
};
template <class F>
inline void each_queries(const GroupLists& a, const KeyGroup& group, GroupQueries& q, const F& f) {
  // Tiles of about the same size.
  const int64_t tiles = (group.queries + kAttendRows - 1) / kAttendRows;
  for (int64_t t = 0; t < tiles; t++) {
    const int64_t from = group.queries * t / tiles, until = group.queries * (t + 1) / tiles;
    q.token = a.query + group.query + from, q.slot = a.slot + group.query + from, q.count = until - from;
    q.last = -1;
    for (int64_t r = 0; r < q.count; r++) {
      q.index[r] = q.token[r] - a.first;
      q.last = std::max(q.last, q.token[r]);
    }
    f(q);
  }
}

inline void forward(const AttendGroups& a) {
  const GroupLists& lists = a.lists;
  const int64_t d = a.width, e = a.value_width, width = attend_padded(d), values = attend_padded(e);
  Scratch scratch;
  float *s = scratch.take(kTileFloats) + 32, *panels = scratch.take(kAttendColumns / 16 * panel_stride(d));
  float *v = scratch.take(kAttendColumns * values), *q_rows = scratch.take(kAttendRows * width);
  float *o = scratch.take(kAttendRows * values), *sum = scratch.take(lists.slots), *part = scratch.take(16);
  GroupKeys keys;
  GroupQueries queries;
  std::memset(a.out, 0, static_cast<size_t>(lists.slots * e) * 4);
  std::fill_n(a.lse, lists.slots, kNever);  // the highest score, until the end
  for (int64_t g = 0; g < lists.count; g++) {
    const KeyGroup& group = lists.groups[g];
    if (group.queries == 0) continue;
    each_keys(lists, group, keys, [&](const GroupKeys& k, bool behind) {
      bool packed = false;
      each_queries(lists, group, queries, [&](const GroupQueries& q) {
        if (lists.causal && k.first > q.last) return;
        if (!packed) {
          pack_panels({a.k, d, k.index}, 0, k.count, d, panel_stride(d), panels);
          pack_rows({a.v, e, k.index}, 0, k.count, e, values, 1, v);
          packed = true;
        }
        pack_rows({a.q, d, q.index}, 0, q.count, d, width, a.scale * kLog2e, q_rows);
        panel_product<Into::set>(q.count, k.columns, d, q_rows, width, panels, 0, panel_stride(d), s, kStride);
        for (int64_t r = 0; r < q.count; r++) {
          float *line = s + r * kStride, *acc = o + r * values, *out = a.out + q.slot[r] * e;
          mask_row(lists, k, q.token[r], group.round, behind, line);
          float& highest = a.lse[q.slot[r]];
          store(part, Lane{});
          part[0] = sum[q.slot[r]];
          const float m = softmax_row<false, Part::whole>(line, 0, k.columns, RowSight{}, highest, part);
          if (m == kNever) {
            std::memset(acc, 0, static_cast<size_t>(values) * 4);
            continue;
          }
          const float factor = highest == kNever ? 0 : exp2_of(all(highest - m))[0];
          sum[q.slot[r]] = total(load(part));
          highest = m;
          for (int64_t c = 0; c < e; c++) acc[c] = out[c] * factor;
        }
        product<Into::add>(q.count, values, k.count, s, kStride, 1, v, values, o, values);
        for (int64_t r = 0; r < q.count; r++) {
          if (a.lse[q.slot[r]] != kNever) {
            std::memcpy(a.out + q.slot[r] * e, o + r * values, static_cast<size_t>(e) * 4);
          }
        }
      });
    });
  }
  for (int64_t n = 0; n < lists.slots; n++) {
    if (a.lse[n] == kNever) continue;
    const float inverse = 1 / sum[n];
    for (int64_t c = 0; c < e; c++) a.out[n * e + c] *= inverse;
    a.lse[n] = a.lse[n] * kLn2 + std::log(sum[n]);
  }
}

inline void backward(const AttendGroups& a) {
  const GroupLists& lists = a.lists;
  const int64_t d = a.width, e = a.value_width, width = attend_padded(d), values = attend_padded(e);
  Scratch scratch;
  float *s = scratch.take(kTileFloats) + 32, *ds = scratch.take(kTileFloats) + 32;
  float* k_panels = scratch.take(kAttendColumns / 16 * panel_stride(d));
  float* v_panels = scratch.take(kAttendColumns / 16 * panel_stride(e));
  float *k_rows = scratch.take(kAttendColumns * width), *dk = scratch.take(kAttendColumns * width);
  float *dv = scratch.take(kAttendColumns * values), *q_rows = scratch.take(kAttendRows * width);
  float *dq = scratch.take(kAttendRows * width), *g_rows = scratch.take(kAttendRows * values);
  std::vector<float> delta(static_cast<size_t>(lists.slots)), lse(delta);
  for (int64_t n = 0; n < lists.slots; n++) {
    lse[static_cast<size_t>(n)] = a.lse[n] == kNever ? -kNever : a.lse[n] * kLog2e;
    float sum = 0;
    for (int64_t c = 0; c < e; c++) sum += a.out[n * e + c] * a.d_out[n * e + c];
    delta[static_cast<size_t>(n)] = sum;
  }
  GroupKeys keys;
  GroupQueries queries;
  int64_t slots[kAttendRows];
  for (int64_t g = 0; g < lists.count; g++) {
    const KeyGroup& group = lists.groups[g];
    if (group.queries == 0) continue;
    each_keys(lists, group, keys, [&](const GroupKeys& k, bool behind) {
      bool packed = false;
      each_queries(lists, group, queries, [&](const GroupQueries& q) {
        if (lists.causal && k.first > q.last) return;
        if (!packed) {
          pack_panels({a.k, d, k.index}, 0, k.count, d, panel_stride(d), k_panels);
          pack_panels({a.v, e, k.index}, 0, k.count, e, panel_stride(e), v_panels);
          pack_rows({a.k, d, k.index}, 0, k.count, d, width, 1, k_rows);
          std::memset(dk, 0, static_cast<size_t>(k.count * width) * 4);
          std::memset(dv, 0, static_cast<size_t>(k.count * values) * 4);
          packed = true;
        }
        for (int64_t r = 0; r < q.count; r++) slots[r] = q.slot[r];
        pack_rows({a.q, d, q.index}, 0, q.count, d, width, a.scale * kLog2e, q_rows);
        pack_rows({a.d_out, e, slots}, 0, q.count, e, values, 1, g_rows);
        panel_product<Into::set>(q.count, k.columns, d, q_rows, width, k_panels, 0, panel_stride(d), s, kStride);
        panel_product<Into::set>(q.count, k.columns, e, g_rows, values, v_panels, 0, panel_stride(e), ds, kStride);
        for (int64_t r = 0; r < q.count; r++) {
          float *weight = s + r * kStride, *line = ds + r * kStride;
          mask_row(lists, k, q.token[r], group.round, behind, weight);
          weights_row<false, Part::whole>(weight, 0, k.columns, RowSight{}, lse[static_cast<size_t>(slots[r])]);
          const Lane shift = all(delta[static_cast<size_t>(slots[r])]);
          for (int64_t c = 0; c < k.columns; c += KINFOLK_LANES) {
            store(line + c, load(weight + c) * (load(line + c) - shift));
          }
        }
        if (a.dv) product<Into::add>(k.count, values, q.count, s, 1, kStride, g_rows, values, dv, values);
        if (a.dk) product<Into::add>(k.count, width, q.count, ds, 1, kStride, q_rows, width, dk, width);
        if (a.dq) {
          product<Into::set>(q.count, width, k.count, ds, kStride, 1, k_rows, width, dq, width);
          for (int64_t r = 0; r < q.count; r++) write_row(dq + r * width, d, a.scale, true, a.dq + q.index[r] * d);
        }
      });
      if (!packed) return;
      for (int64_t c = 0; c < k.count; c++) {
        if (a.dk) write_row(dk + c * width, d, kLn2, true, a.dk + k.index[c] * d);
        if (a.dv) write_row(dv + c * values, e, 1, true, a.dv + k.index[c] * e);
      }
    });
  }
}
