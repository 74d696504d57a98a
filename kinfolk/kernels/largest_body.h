// Products of a block of keys with all queries, and what of them is large. No include guard: included once for each
// instruction set.

/// Sum of a_i b_i.
KINFOLK_INLINE float key_product(const float* a, const float* b, int64_t width) {
  Lane sum{};
  int64_t c = 0;
  for (; c + KINFOLK_LANES <= width; c += KINFOLK_LANES) sum = sum + load(a + c) * load(b + c);
  float all_lanes = 0;
  for (int l = 0; l < KINFOLK_LANES; l++) all_lanes += sum[l];
  for (; c < width; c++) all_lanes += a[c] * b[c];
  return all_lanes;
}

/// to [width, columns]: queries as columns, up to a multiple of 16 of them (the last ones zero).
inline void pack_queries(const LargestSearch& s, int64_t columns, float* to) {
  for (int64_t r = 0; r < columns; r++) {
    if (r >= s.rows) {
      for (int64_t i = 0; i < s.width; i++) to[i * columns + r] = 0;
      continue;
    }
    const float* q = s.queries + (s.query_rows ? s.query_rows[r] : r) * s.width;
    for (int64_t i = 0; i < s.width; i++) to[i * columns + r] = q[i];
  }
}

/// Offers one key's scores to as many queries as a block has columns. bound: what a score must reach, of each.
KINFOLK_INLINE void keep_scores(const LargestSearch& s, int64_t first, int64_t columns, int64_t key,
                                const float* scores, float* bound) {
  int large = 0;
  for (int64_t c = 0; c < columns; c++) large |= scores[c] >= bound[c];
  if (large == 0) return;  // most keys are near to nobody
  for (int64_t c = 0; c < columns; c++) {
    if (!(scores[c] >= bound[c]) || first + c >= s.rows) continue;
    const int64_t row = s.query_rows ? s.query_rows[first + c] : first + c;
    offer_largest({scores[c], key}, s.k, s.best[row]);
    bound[c] = s.best[row].bound;
  }
}

inline void search(const LargestSearch& s, float* scratch) {
  const auto row_of = [&](int64_t r) -> int64_t { return s.query_rows ? s.query_rows[r] : r; };
  const auto slot_of = [&](int64_t c) -> int64_t { return s.slots ? s.slots[c] : s.first + c; };
  if (s.rows < 4) {
    for (int64_t c = 0; c < s.count; c++) {
      const float* key = s.keys + slot_of(c) * s.width;
      for (int64_t r = 0; r < s.rows; r++) {
        Best<float>& best = s.best[row_of(r)];
        const float score = key_product(s.queries + row_of(r) * s.width, key, s.width);
        if (score >= best.bound) offer_largest({score, slot_of(c)}, s.k, best);
      }
    }
    return;
  }
  float bound[kLargestRows];
  for (int64_t r = 0; r < kLargestRows; r++) bound[r] = r < s.rows ? s.best[row_of(r)].bound : __builtin_inff();
  const int64_t columns = (s.rows + 15) / 16 * 16;
  float *packed = scratch, *scores = packed + s.width * kLargestRows, *gathered = scores + kLargestKeys * kLargestPart;
  pack_queries(s, columns, packed);
  for (int64_t from = 0; from < s.count; from += kLargestKeys) {
    const int64_t count = s.count - from < kLargestKeys ? s.count - from : kLargestKeys;
    const float* keys = s.keys + (s.first + from) * s.width;
    if (s.slots) {
      for (int64_t c = 0; c < count; c++) {
        const float* key = s.keys + s.slots[from + c] * s.width;
        for (int64_t i = 0; i < s.width; i++) gathered[c * s.width + i] = key[i];
      }
      keys = gathered;
    }
    for (int64_t part = 0; part < columns; part += kLargestPart) {
      const int64_t wide = columns - part < kLargestPart ? columns - part : kLargestPart;
      product<Into::set>(count, wide, s.width, keys, s.width, 1, packed + part, columns, scores, wide);
      for (int64_t c = 0; c < count; c++) {
        keep_scores(s, part, wide, slot_of(from + c), scores + c * wide, bound + part);
      }
    }
  }
}
