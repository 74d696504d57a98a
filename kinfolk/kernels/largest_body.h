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

/// to [width, kLargestKeys]: keys as columns, up to a multiple of 16 of them (the last ones zero).
inline void pack_keys(const LargestSearch& s, int64_t from, int64_t count, float* to) {
  const auto key = [&](int64_t c) { return s.keys + (s.slots ? s.slots[from + c] : s.first + from + c) * s.width; };
  int64_t c = 0;
  for (; c + 4 <= count; c += 4) {
    const float *k0 = key(c), *k1 = key(c + 1), *k2 = key(c + 2), *k3 = key(c + 3);
    int64_t i = 0;
    for (; i + 4 <= s.width; i += 4) {
      const Quad a = *reinterpret_cast<const LooseQuad*>(k0 + i), b = *reinterpret_cast<const LooseQuad*>(k1 + i),
                 d = *reinterpret_cast<const LooseQuad*>(k2 + i), e = *reinterpret_cast<const LooseQuad*>(k3 + i);
      const Quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Quad de0 = __builtin_shufflevector(d, e, 0, 4, 1, 5), de1 = __builtin_shufflevector(d, e, 2, 6, 3, 7);
      float* t = to + i * kLargestKeys + c;
      *reinterpret_cast<LooseQuad*>(t) = __builtin_shufflevector(ab0, de0, 0, 1, 4, 5);
      *reinterpret_cast<LooseQuad*>(t + kLargestKeys) = __builtin_shufflevector(ab0, de0, 2, 3, 6, 7);
      *reinterpret_cast<LooseQuad*>(t + 2 * kLargestKeys) = __builtin_shufflevector(ab1, de1, 0, 1, 4, 5);
      *reinterpret_cast<LooseQuad*>(t + 3 * kLargestKeys) = __builtin_shufflevector(ab1, de1, 2, 3, 6, 7);
    }
    for (; i < s.width; i++) {
      float* t = to + i * kLargestKeys + c;
      t[0] = k0[i], t[1] = k1[i], t[2] = k2[i], t[3] = k3[i];
    }
  }
  for (; c < count; c++) {
    const float* own = key(c);
    for (int64_t i = 0; i < s.width; i++) to[i * kLargestKeys + c] = own[i];
  }
  for (; c < (count + 15) / 16 * 16; c++) {
    for (int64_t i = 0; i < s.width; i++) to[i * kLargestKeys + c] = 0;
  }
}

/// Offers the scores of keys from, ..., from + count - 1 of the list to one query.
KINFOLK_INLINE void keep_scores(const LargestSearch& s, int64_t row, int64_t from, int64_t count, const float* scores) {
  Scored<float>* best = s.best + row * s.k;
  int64_t& filled = s.filled[row];
  const auto index = [&](int64_t c) -> int64_t { return s.slots ? s.slots[from + c] : s.first + from + c; };
  int64_t c = 0;
  for (; c < count && filled < s.k; c++) offer_largest({scores[c], index(c)}, s.k, best, filled);
  for (; c < count; c += 32) {
    const int64_t end = c + 32 < count ? c + 32 : count;
    // Most stretches hold nothing large: one vector pass says so.
    const float bound = best[0].score;
    int large = 0;
    for (int64_t i = c; i < end; i++) large |= scores[i] >= bound;
    if (large == 0) continue;
    for (int64_t i = c; i < end; i++)
      if (scores[i] >= best[0].score) offer_largest({scores[i], index(i)}, s.k, best, filled);
  }
}

inline void search(const LargestSearch& s, float* scratch) {
  const auto row_of = [&](int64_t r) -> int64_t { return s.query_rows ? s.query_rows[r] : r; };
  float *panel = scratch, *scores = panel + s.width * kLargestKeys, *gathered = scores + kLargestRows * kLargestKeys;
  for (int64_t from = 0; from < s.count; from += kLargestKeys) {
    const int64_t count = s.count - from < kLargestKeys ? s.count - from : kLargestKeys;
    if (s.rows < 4) {
      for (int64_t r = 0; r < s.rows; r++) {
        const float* q = s.queries + row_of(r) * s.width;
        for (int64_t c = 0; c < count; c++) {
          scores[c] = key_product(q, s.keys + (s.slots ? s.slots[from + c] : s.first + from + c) * s.width, s.width);
        }
        keep_scores(s, row_of(r), from, count, scores);
      }
      continue;
    }
    pack_keys(s, from, count, panel);
    for (int64_t r = 0; r < s.rows; r += kLargestRows) {
      const int64_t rows = s.rows - r < kLargestRows ? s.rows - r : kLargestRows;
      const float* q = s.queries + r * s.width;
      if (s.query_rows) {
        for (int64_t i = 0; i < rows; i++) {
          const float* own = s.queries + s.query_rows[r + i] * s.width;
          for (int64_t j = 0; j < s.width; j++) gathered[i * s.width + j] = own[j];
        }
        q = gathered;
      }
      product<Into::set>(rows, (count + 15) / 16 * 16, s.width, q, s.width, 1, panel, kLargestKeys, scores,
                         kLargestKeys);
      for (int64_t i = 0; i < rows; i++) keep_scores(s, row_of(r + i), from, count, scores + i * kLargestKeys);
    }
  }
}
