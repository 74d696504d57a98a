// The backward pass of attend_body.h: tiles of keys outside, tiles of queries inside. With w = 2^(s - lse):
// dV = w^T dO, ds = w (dO V^T - rowsum(dO out) + dlse). With dropout, dO V^T and the w of dV are 0 where it is dropped
// and divided by `keep`, which dO is beforehand.

/// One head's queries, packed, and what is summed over tiles of keys.
struct BackwardHead {
  std::vector<float*> q, dq;              ///< of each band [L, padded], q as in the forward pass
  float *g, *by, *d_by;                   ///< [L, padded]; by as in the forward pass, g of out over keep
  float *lse, *delta;                     ///< [L]; lse in log2, +inf where a query saw nothing
  float *d_table, *d_factor, *d_by_rows;  ///< this thread's sums, or null
  float* raw;                             ///< products of a tile before they are scaled, or null
  // Of values by distance: g . row [L, bins], and weights by bin [L, bins] and d_value_rows, or null.
  float *bins, *d_bins, *d_value_rows;
};

/// One tile of keys.
struct BackwardKeys {
  float *k_panels, *v_panels, *k, *dk, *dv;  ///< k, dk of one band
};

inline void pack_head(const Head& head, BackwardHead& x) {
  const Attend& a = head.a;
  const auto tokens = [&](const Strided<const float>& t) { return Tokens{t.at(head.lane, head.head), t.row, nullptr}; };
  const int64_t L = a.length, first = (head.lane * a.heads + head.head) * L;
  for (size_t b = 0; b < a.bands.size(); b++) {
    pack_rows(tokens(a.bands[b].q), 0, L, a.width, head.width, a.bands[b].scale * kLog2e, x.q[b]);
    if (x.dq[b]) std::memset(x.dq[b], 0, static_cast<size_t>(L * head.width) * 4);
  }
  pack_rows(tokens(a.d_out), 0, L, a.value_width, head.value_width, 1 / a.keep, x.g);
  if (x.by) pack_rows(tokens(a.by), 0, L, a.by_width, head.by_width, a.by_scale * kLog2e, x.by);
  for (int64_t i = 0; i < L; i++) {
    const bool empty = a.lse[first + i] == kNever;
    x.lse[i] = empty ? -kNever : a.lse[first + i] * kLog2e;
    const float *out = a.out.at(head.lane, head.head) + i * a.out.row, *g = x.g + i * head.value_width;
    Lane sum = Lane{};
    int64_t e = 0;
    for (; e + KINFOLK_LANES <= a.value_width; e += KINFOLK_LANES) sum = sum + load(out + e) * load(g + e);
    float delta = total(sum);
    for (; e < a.value_width; e++) delta += out[e] * g[e];
    delta *= a.keep;
    x.delta[i] = empty ? 0 : a.d_lse ? delta - a.d_lse[first + i] : delta;
  }
  if (x.d_by) std::memset(x.d_by, 0, static_cast<size_t>(L * head.by_width) * 4);
  for (int64_t i = 0; i < L && a.value_rows; i++) {
    for (int64_t b = 0; b < a.value_bins; b++) {
      x.bins[i * a.value_bins + b] =
          dot(x.g + i * head.value_width, a.value_rows + b * head.value_width, head.value_width);
    }
  }
  if (x.d_bins) std::memset(x.d_bins, 0, static_cast<size_t>(L * a.value_bins) * 4);
}

/// Gradients of p and r from ds of a strip, whose rows are 0 for 16 columns on both sides.
inline void by_backward(const Head& head, const QueryTile& q, const KeyTile& k, const TileSight& sight,
                        const Strip& strip, const float* ds, const BackwardHead& x) {
  const int64_t width = head.by_width;
  if (x.d_by) {
    each_run(q, sight, strip, 6, [&](int64_t r, int64_t n) {
      const int64_t y = head.column(q.at[r] - k.at.low) - (n - 1) + strip.begin;
      product<Into::add>(n, width, strip.end - strip.begin + n - 1, ds + r * kStride + strip.begin - (n - 1),
                         kStride + 1, 1, head.by_rows + y * width, width, x.d_by + (q.first + r) * width, width);
    });
  }
  if (!x.d_by_rows) return;
  each_run(q, sight, strip, kAttendRows, [&](int64_t r, int64_t n) {
    const int64_t zero = head.column(q.at[r] - k.at.low);  // column y of row r + m meets c = y - zero + m
    const int64_t last = zero + strip.end;
    for (int64_t y = zero - (n - 1) + strip.begin; y < last; y += 6) {
      const int64_t rows = std::min<int64_t>(6, last - y);
      const int64_t from = std::max<int64_t>(0, strip.begin + zero - (y + rows - 1));
      const int64_t to = std::min(n, strip.end + zero - y);
      product<Into::add>(rows, width, to - from, ds + (r + from) * kStride + y - zero + from, 1, kStride + 1,
                         x.by + (q.first + r + from) * width, width, x.d_by_rows + y * width, width);
    }
  });
}

/// Gradients of tables where columns are in any order.
inline void scattered_backward(const Head& head, const QueryTile& q, const KeyTile& k, size_t set,
                               const TileSight& sight, const float* ds, const BackwardHead& x) {
  if (!x.d_table && !x.d_factor && !x.d_by && !x.d_by_rows) return;
  const int64_t* at = head.sets[set].at + k.first;
  const int64_t width = head.by_width;
  for (int64_t r = 0; r < q.count; r++) {
    for (int64_t c = 0; c < k.count; c++) {
      if (sight.mask[static_cast<size_t>(r * kAttendColumns + c)] == kNever) continue;
      const int64_t y = head.column(q.at[r] - at[c]), i = q.first + r;
      const float d = ds[r * kStride + c];
      if (x.d_factor) x.d_factor[y] += d * x.raw[r * kStride + c] * kLn2;
      if (x.d_table) x.d_table[y] += d;
      for (int64_t n = 0; n < width; n++) {
        if (x.d_by) x.d_by[i * width + n] += d * head.by_rows[y * width + n];
        if (x.d_by_rows) x.d_by_rows[y * width + n] += d * x.by[i * width + n];
      }
    }
  }
}

inline void backward_tile(const Head& head, const QueryTile& q, size_t set, size_t band, const KeyTile& k,
                          TileSight& sight, const BackwardHead& x, const BackwardKeys& t, float* s, float* ds) {
  const Attend& a = head.a;
  const int64_t width = head.width, values = head.value_width;
  const float *qs = x.q[band] + q.first * width, *g = x.g + q.first * values;
  head.complete_mask(q, k, set, sight, x.by ? x.by + q.first * head.by_width : nullptr);
  Drops drops;
  head.draw(q, k, set, drops);
  for (int n = 0; n < sight.strips; n++) {
    const Strip& strip = sight.strip[n];
    const int64_t columns = strip.end - strip.begin, seen = std::min(strip.end, k.count) - strip.begin;
    const int64_t at = strip.row * kStride + strip.begin;
    panel_product<Into::set>(strip.rows, columns, a.width, qs + strip.row * width, width, t.k_panels, strip.begin,
                             panel_stride(a.width), s + at, kStride);
    head.scale(q, k, sight, strip, s, x.raw);
    if (head.by_panels) head.add_by(q, k, sight, strip, x.by + q.first * head.by_width, s);
    head.add_spans(q, k, set, sight, strip, s);
    for (int64_t r = strip.row; r < strip.row + strip.rows; r++) {
      const RowSight row = head.row(q, k, sight, r);
      float* line = s + r * kStride;
      if (row.low >= row.high) {
        for (int64_t c = strip.begin; c < strip.end; c += KINFOLK_LANES) store(line + c, Lane{});
        continue;
      }
      by_sight(row, strip, [&]<bool table, Part part>() {
        weights_row<table, part>(line, strip.begin, strip.end, row, x.lse[q.first + r]);
      });
    }
    panel_product<Into::set>(strip.rows, columns, a.value_width, g + strip.row * values, values, t.v_panels,
                             strip.begin, panel_stride(a.value_width), ds + at, kStride);
    for (int64_t r = strip.row; r < strip.row + strip.rows; r++) {
      const Lane delta = all(x.delta[q.first + r]);
      float *line = ds + r * kStride, *weight = s + r * kStride;
      const bool sees = !sight.affine || sight.full || sight.low[r] < sight.high[r];
      float* const bins = a.value_rows && sees ? x.bins + (q.first + r) * a.value_bins : nullptr;
      if (bins && sight.affine) {
        add_from_bins(bins, strip.begin, strip.end, head.bin_offset(q, k, r), a.value_bins, line);
      } else if (bins) {
        const int64_t* at = head.sets[set].at + k.first;
        for (int64_t c = 0; c < k.count; c++) line[c] += bins[head.bin(q.at[r] - at[c])];
      }
      if (a.keep < 1) drop_row(line, strip.begin, strip.end, drops, r);
      for (int64_t c = strip.begin; c < strip.end; c += KINFOLK_LANES) {
        store(line + c, load(weight + c) * (load(line + c) - delta));
      }
      if (a.d_span) {
        a.d_span[(head.lane * a.heads + head.head) * a.length + q.first + r] +=
            head.span_backward(q, k, set, sight, strip, r, line);
      }
      if (a.keep < 1) drop_row(weight, strip.begin, strip.end, drops, r);
      if (x.d_bins && sees) {
        head.add_bins(q, k, set, sight, strip, r, weight, x.d_bins + (q.first + r) * a.value_bins);
      }
      if (x.d_table && sight.affine && (sight.full || sight.low[r] < sight.high[r])) {
        float* sum = x.d_table + head.column(q.at[r] - k.at.low);
        for (int64_t c = strip.begin; c < strip.end; c += KINFOLK_LANES) store(sum + c, load(sum + c) + load(line + c));
      }
      if (head.by_panels) {
        for (int64_t c = 0; c < 16; c += KINFOLK_LANES) {
          store(line + strip.begin - 16 + c, Lane{});
          store(line + strip.end + c, Lane{});
        }
      }
    }
    if (t.dv) {
      product<Into::add>(seen, values, strip.rows, s + at, 1, kStride, g + strip.row * values, values,
                         t.dv + strip.begin * values, values);
    }
    if (head.by_panels && sight.affine) by_backward(head, q, k, sight, strip, ds, x);
    if (!sight.affine) scattered_backward(head, q, k, set, sight, ds, x);  // one strip is the tile
    if (x.raw) {
      for (int64_t r = strip.row; r < strip.row + strip.rows; r++) {
        const RowSight row = head.row(q, k, sight, r);
        if (row.low >= row.high) continue;
        float* sum = x.d_factor && sight.affine ? x.d_factor + head.column(q.at[r] - k.at.low) : nullptr;
        scale_row_backward(ds + r * kStride, strip.begin, strip.end, row.factor, a.floor, x.raw + r * kStride, sum);
      }
    }
    if (t.dk) {
      product<Into::add>(seen, width, strip.rows, ds + at, 1, kStride, qs + strip.row * width, width,
                         t.dk + strip.begin * width, width);
    }
    if (x.dq[band]) {
      product<Into::add>(strip.rows, width, seen, ds + at, kStride, 1, t.k + strip.begin * width, width,
                         x.dq[band] + (q.first + strip.row) * width, width);
    }
  }
}

/// Adds this thread's sums of head h to those of all threads.
inline void flush(const Head& head, int64_t h, BackwardHead& x) {
  const Attend& a = head.a;
  if (!x.d_table && !x.d_factor && !x.d_by_rows && !x.d_value_rows) return;
  const std::lock_guard<std::mutex> held(*a.lock);
  const auto add = [](float* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
    std::memset(from, 0, static_cast<size_t>(count) * 4);
  };
  if (x.d_table) add(x.d_table, attend_table_columns(a.distances), a.d_table + h * a.table_head);
  if (x.d_value_rows) add(x.d_value_rows, a.value_bins * head.value_width, a.d_value_rows);
  if (x.d_factor) add(x.d_factor, attend_table_columns(a.distances), a.d_factor + h * a.factor_head);
  if (x.d_by_rows) {
    const int64_t count = attend_rows_size(a.distances, a.by_width);
    add(x.d_by_rows, count, a.d_by_rows + h * count);
  }
}

/// Items: groups, then lanes.
void backward(const Attend& a, int64_t begin, int64_t end) {
  const int64_t shared = a.heads / a.groups, L = a.length;
  Head head(a);
  TileSight sight;
  Scratch scratch;
  float* s = scratch.take(kTileFloats, true) + 32;
  float* ds = scratch.take(kTileFloats, true) + 32;
  BackwardKeys t{};
  t.k_panels = scratch.take(kAttendColumns / 16 * panel_stride(a.width));
  t.v_panels = scratch.take(kAttendColumns / 16 * panel_stride(a.value_width));
  t.k = scratch.take(kAttendColumns * head.width);
  float *dk = scratch.take(kAttendColumns * head.width), *dv = scratch.take(kAttendColumns * head.value_width);
  BackwardHead x{};
  for (const AttendBand& band : a.bands) {
    x.q.push_back(scratch.take(L * head.width));
    x.dq.push_back(band.dq.data ? scratch.take(L * head.width) : nullptr);
  }
  x.g = scratch.take(L * head.value_width);
  x.lse = scratch.take(L), x.delta = scratch.take(L);
  if (a.by_panels) x.by = scratch.take(L * head.by_width);
  if (a.d_by.data) x.d_by = scratch.take(L * head.by_width);
  if (a.factor) x.raw = scratch.take(kTileFloats, true) + 32;
  if (a.value_rows) x.bins = scratch.take(L * a.value_bins);
  if (a.d_value_rows) {
    x.d_bins = scratch.take(L * a.value_bins);
    x.d_value_rows = scratch.take(a.value_bins * head.value_width, true);
  }
  std::vector<float*> tables(static_cast<size_t>(shared)), factors(tables), rows(tables);
  for (int64_t n = 0; n < shared; n++) {
    if (a.d_table) tables[static_cast<size_t>(n)] = scratch.take(attend_table_columns(a.distances), true);
    if (a.d_factor) factors[static_cast<size_t>(n)] = scratch.take(attend_table_columns(a.distances), true);
    if (a.d_by_rows) rows[static_cast<size_t>(n)] = scratch.take(attend_rows_size(a.distances, a.by_width), true);
  }
  std::vector<QueryTile> queries;
  for (int64_t item = begin; item < end; item++) {
    const int64_t group = item / a.batch, lane = item % a.batch;
    for (int64_t n = 0; n < shared; n++) {
      const int64_t h = group * shared + n;
      if (head.move(lane, h)) {
        queries.clear();
        for (int64_t first = 0; first < L; first += kAttendRows) queries.push_back(query_tile(a, lane, first));
      }
      x.d_table = tables[static_cast<size_t>(n)], x.d_factor = factors[static_cast<size_t>(n)];
      x.d_by_rows = rows[static_cast<size_t>(n)];
      pack_head(head, x);
      for (size_t set = 0; set < head.sets.size(); set++) {
        const Strided<float>& d_values = a.sets[set].dv;
        for (const KeyTile& k : head.sets[set].tiles) {
          const int64_t* index = head.sets[set].index;
          const auto add_rows = [&](const float* from, int64_t width, int64_t padded, float factor,
                                    const Strided<float>& to) {
            for (int64_t c = 0; c < k.count; c++) {
              const int64_t j = index ? index[k.first + c] : k.first + c;
              write_row(from + c * padded, width, factor, true, to.at(lane, group) + j * to.row);
            }
          };
          bool any = false;
          for (size_t b = 0; b < a.bands.size(); b++) {
            const Strided<float>& d_keys = a.sets[set].keys[b].dk;
            bool met = false;
            for (const QueryTile& q : queries) {
              if (!meet(a, lane, b, q, set, head.sets[set], k, sight)) continue;
              if (!any) {
                pack_panels(head.values(set, group), k.first, k.count, a.value_width, panel_stride(a.value_width),
                            t.v_panels);
                t.dv = d_values.data ? dv : nullptr;
                std::memset(dv, 0, static_cast<size_t>(k.count * head.value_width) * 4);
              }
              if (!met) {
                const Tokens keys = head.keys(set, b, group);
                pack_panels(keys, k.first, k.count, a.width, panel_stride(a.width), t.k_panels);
                pack_rows(keys, k.first, k.count, a.width, head.width, 1, t.k);
                t.dk = d_keys.data ? dk : nullptr;
                std::memset(dk, 0, static_cast<size_t>(k.count * head.width) * 4);
              }
              any = met = true;
              backward_tile(head, q, set, b, k, sight, x, t, s, ds);
            }
            if (met && t.dk) add_rows(dk, a.width, head.width, kLn2, d_keys);
          }
          if (any && t.dv) add_rows(dv, a.value_width, head.value_width, 1, d_values);
        }
      }
      for (size_t b = 0; b < a.bands.size(); b++) {
        const Strided<float>& to = a.bands[b].dq;
        for (int64_t i = 0; i < L && to.data; i++) {
          write_row(x.dq[b] + i * head.width, a.width, a.bands[b].scale, false, to.at(lane, h) + i * to.row);
        }
      }
      for (int64_t i = 0; i < L; i++) {
        if (x.d_by) {
          write_row(x.d_by + i * head.by_width, a.by_width, a.by_scale, false, a.d_by.at(lane, h) + i * a.d_by.row);
        }
      }
      if (x.d_bins) {
        product<Into::add>(a.value_bins, head.value_width, L, x.d_bins, 1, a.value_bins, x.g, head.value_width,
                           x.d_value_rows, head.value_width);
      }
      if (lane + 1 == a.batch || item + 1 == end) flush(head, h, x);
    }
  }
}
