// One decay a token, or none, over one head, on the tiles of tile_body.h; included once for each instruction set, like
// it. With D_ij = a_(j+1) ... a_i for j <= i inside a chunk:
//   O = diag(before) Q S + (D * Q K^T) V,   S <- a_0 ... a_(C-1) S + K^T diag(after) V.

/// The sum of the lanes.
KINFOLK_INLINE float lane_sum(Lane x) {
  float sum = 0;
  KINFOLK_UNROLL
  for (int i = 0; i < KINFOLK_LANES; i++) sum += x[i];
  return sum;
}
inline float dot(int64_t n, const float* a, const float* b) {
  Lane sum = {};
  for (int64_t i = 0; i < n; i += KINFOLK_LANES) sum = sum + load(a + i) * load(b + i);
  return lane_sum(sum);
}
/// to = factor[r] from, row by row; may be in place.
inline void scale_rows(int64_t rows, int64_t columns, const float* from, const float* factor, float* to) {
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c += KINFOLK_LANES) {
      store(to + r * columns + c, all(factor[r]) * load(from + r * columns + c));
    }
  }
}
inline void scale_all(int64_t n, float factor, float* t) {
  for (int64_t i = 0; i < n; i += KINFOLK_LANES) store(t + i, all(factor) * load(t + i));
}
inline void copy_all(int64_t n, const float* from, float* to) {
  for (int64_t i = 0; i < n; i += KINFOLK_LANES) store(to + i, load(from + i));
}

inline void copy_scaled(int64_t n, float factor, const float* from, float* to) {
  for (int64_t i = 0; i < n; i += KINFOLK_LANES) store(to + i, all(factor) * load(from + i));
}

/// Asks for n floats from memory, for the chunk that comes next.
inline void fetch(int64_t n, const float* from) {
  for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(from + i, 0, 2);
}

/// D [C, C] where blocks of 16 columns touch the lower triangle, 0 above it; its last row is what of each token is left
/// at the end. before[i] = a_0 ... a_i.
inline void spread_decays(int64_t C, const float* a, float* d, float* before) {
  float left = 1;
  for (int64_t i = 0; i < C; i++) {
    for (int64_t c = 0; c < (i / 16 + 1) * 16; c += KINFOLK_LANES) {
      const bool fresh = i == 0 || c >= ((i - 1) / 16 + 1) * 16;
      store(d + i * C + c, fresh ? Lane{} : all(a[i]) * load(d + (i - 1) * C + c));
    }
    d[i * C + i] = 1;
    before[i] = left *= a[i];
  }
}
/// t *= d over the same blocks.
inline void multiply_lower(int64_t size, const float* d, float* t) {
  for (int64_t r = 0; r < size; r++) {
    for (int64_t c = 0; c < (r / 16 + 1) * 16; c += KINFOLK_LANES) {
      store(t + r * size + c, load(t + r * size + c) * load(d + r * size + c));
    }
  }
}

void token_forward(const DecaySizes& z, const DecayForward& h, float* scratch) {
  const int64_t C = z.size, K = z.keys, V = z.values;
  float *kt = scratch, *left = kt + C * K, *score = left + C * V, *d = score + C * C, *before = d + C * C;
  const float* after = d + (C - 1) * C;
  for (int64_t n = 0; n < z.chunks; n++) {
    const float *q = h.q + n * C * K, *k = h.k + n * C * K, *v = h.v + n * C * V, *end = v;
    float* out = h.out + n * C * V;
    if (h.states) copy_all(K * V, h.state, h.states + n * K * V);
    const bool more = n + 1 < z.chunks;
    transpose(C, K, k, kt);
    if (more) fetch(C * K, q + C * K);
    product_lower(C, K, q, kt, score);
    if (more) fetch(C * K, k + C * K);
    product<Into::set>(C, V, K, q, K, 1, h.state, V, out, V);
    if (more) fetch(C * V, v + C * V);
    if (h.decay) {
      spread_decays(C, h.decay + n * C, d, before);
      multiply_lower(C, d, score);
      scale_rows(C, V, out, before, out);
      scale_rows(C, V, v, after, left);
      scale_all(K * V, before[C - 1], h.state);
      end = left;
    } else {
      clear_above(C, score, false);
    }
    add_lower(C, V, score, v, out);
    if (z.scale != 1) scale_all(C * V, z.scale, out);
    product<Into::add>(K, V, C, k, 1, K, end, V, h.state, V);
  }
}

/// da_u = sum of D_(u-1)j M_ij D_iu over j < u <= i, where the chunk is bordered by the state it starts from (column
/// -1: `first`, with D_(u-1)(-1) = before[u-1]) and the one it ends in (row C: `last`), with `corner` where they meet.
/// With y_j = sum over i >= u of M_ij D_iu this is one pass from the last token to the first.
inline void grad_token_decays(int64_t C, const float* a, const float* d, const float* before, const float* m,
                              const float* first, const float* last, float corner, float* y, float* grad) {
  copy_all(C, last, y);
  for (int64_t u = C - 1; u >= 0; u--) {
    const float pass = u + 1 < C ? a[u + 1] : 1;
    Lane sum = {};
    for (int64_t c = 0; c < (u / 16 + 1) * 16; c += KINFOLK_LANES) {
      const Lane next = load(m + u * C + c) + all(pass) * load(y + c);
      store(y + c, next);
      // Row u - 1 of D is 0 from column u on, and ends with the block of column u - 1.
      if (u > 0 && c <= u - 1) sum = sum + load(d + (u - 1) * C + c) * next;
    }
    corner = first[u] + pass * corner;
    grad[u] = lane_sum(sum) + (u > 0 ? before[u - 1] : 1) * corner;
  }
}

void token_backward(const DecaySizes& z, const DecayBackward& h, float* scratch) {
  const int64_t C = z.size, K = z.keys, V = z.values;
  float *kt = scratch, *vt = kt + C * K, *st = vt + C * V, *gst = st + K * V, *score = gst + K * V,
        *gscore = score + C * C, *d = gscore + C * C, *before = d + C * C, *first = before + C, *last = first + C,
        *y = last + C, *go = y + C, *m = go + C * V;  // m shares what only it needs with the scaled queries
  float* seen = m;
  const float* after = d + (C - 1) * C;
  for (int64_t n = z.chunks - 1; n >= 0; n--) {
    const float *q = h.q + n * C * K, *k = h.k + n * C * K, *v = h.v + n * C * V, *state = h.states + n * K * V,
                *read = q;
    float *gq = h.grad_q + n * C * K, *gk = h.grad_k + n * C * K, *gv = h.grad_v + n * C * V;
    copy_scaled(C * V, z.scale, h.grad_out + n * C * V, go);
    transpose(C, K, k, kt);
    transpose(C, V, v, vt);
    transpose(K, V, state, st);
    transpose(K, V, h.grad_state, gst);
    const bool more = n > 0;
    product_lower(C, K, q, kt, score);
    if (more) fetch(C * K, k - C * K);
    product_lower(C, V, go, vt, gscore);
    if (more) fetch(C * V, v - C * V);
    product<Into::set>(C, K, V, go, V, 1, st, K, gq, K);
    if (more) fetch(K * V, state - K * V);
    product<Into::set>(C, K, V, v, V, 1, gst, K, gk, K);
    if (more) fetch(C * V, h.grad_out + (n - 1) * C * V);
    product<Into::set>(C, V, K, k, K, 1, h.grad_state, V, gv, V);
    if (more) fetch(C * K, q - C * K);
    if (h.decay) {
      const float* a = h.decay + n * C;
      spread_decays(C, a, d, before);
      for (int64_t i = 0; i < C; i++) first[i] = dot(K, q + i * K, gq + i * K), last[i] = dot(K, k + i * K, gk + i * K);
      const float corner = dot(K * V, state, h.grad_state);
      for (int64_t r = 0; r < C; r++) {
        for (int64_t c = 0; c < (r / 16 + 1) * 16; c += KINFOLK_LANES) {
          const int64_t at = r * C + c;
          const Lane s = load(score + at), g = load(gscore + at), decayed = load(d + at);
          store(m + at, s * g);
          store(score + at, s * decayed);
          store(gscore + at, g * decayed);
        }
      }
      grad_token_decays(C, a, d, before, m, first, last, corner, y, h.grad_decay + n * C);
      scale_rows(C, K, gq, before, gq);
      scale_rows(C, K, gk, after, gk);
      scale_rows(C, V, gv, after, gv);
      scale_rows(C, K, q, before, seen);
      scale_all(K * V, before[C - 1], h.grad_state);
      read = seen;
    } else {
      clear_above(C, score, false);
      clear_above(C, gscore, false);
    }
    add_lower(C, K, gscore, k, gq);
    add_lower_transposed(C, K, gscore, q, gk);
    add_lower_transposed(C, V, score, go, gv);
    product<Into::add>(K, V, C, read, 1, K, go, V, h.grad_state, V);
  }
}
