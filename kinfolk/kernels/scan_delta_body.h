// The delta rule over one head, on the tiles of tile_body.h; included once for each instruction set, like it.

/// Rows r of t [size, size], up to their block of 16 columns, times factor[r].
inline void scale_lower(int64_t size, const float* from, const float* factor, float* to) {
  for (int64_t r = 0; r < size; r++) {
    for (int64_t c = 0; c < (r / 16 + 1) * 16; c += KINFOLK_LANES) {
      store(to + r * size + c, all(factor[r]) * load(from + r * size + c));
    }
  }
}

inline float sum_of(Lane v) {
  float sum = 0;
  for (int i = 0; i < KINFOLK_LANES; i++) sum += v[i];
  return sum;
}

inline void copy(const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; i += KINFOLK_LANES) store(to + i, load(from + i));
}

void forward(const DeltaSizes& z, const DeltaForward& h, float* scratch) {
  const int64_t C = z.size, K = z.keys, V = z.values;
  float *kt = scratch, *m = kt + C * K, *score = m + C * C;
  for (int64_t n = 0; n < z.chunks; n++) {
    const float *q = h.q + n * C * K, *k = h.k + n * C * K, *v = h.v + n * C * V, *beta = h.beta + n * C;
    float *out = h.out + n * C * V, *u = h.u + n * C * V;
    copy(h.state, h.states + n * K * V, K * V);
    transpose(C, K, k, kt);
    product_lower(C, K, k, kt, m);
    clear_above(C, m, true);
    scale_lower(C, m, beta, m);
    product<Into::set>(C, V, K, k, K, 1, h.state, V, u, V);
    for (int64_t r = 0; r < C; r++) {
      for (int64_t c = 0; c < V; c += KINFOLK_LANES) {
        store(u + r * V + c, all(beta[r]) * (load(v + r * V + c) - load(u + r * V + c)));
      }
    }
    solve_lower(C, V, m, u);
    product_lower(C, K, q, kt, score);
    clear_above(C, score, false);
    product<Into::set>(C, V, K, q, K, 1, h.state, V, out, V);
    add_lower(C, V, score, u, out);
    product<Into::add>(K, V, C, k, 1, K, u, V, h.state, V);
  }
}

void backward(const DeltaSizes& z, const DeltaBackward& h, float* scratch) {
  const int64_t C = z.size, K = z.keys, V = z.values;
  float *kt = scratch, *ut = kt + C * K, *st = ut + C * V, *gst = st + K * V;  // transposes: [K C], [V C], [V K] twice
  float *score = gst + K * V, *kk = score + C * C, *m = kk + C * C, *gscore = m + C * C, *gm = gscore + C * C;
  float *gr = gm + C * C, *read = gr + C * V;  // [C, V]
  for (int64_t n = z.chunks - 1; n >= 0; n--) {
    const float *q = h.q + n * C * K, *k = h.k + n * C * K, *v = h.v + n * C * V, *beta = h.beta + n * C;
    const float *u = h.u + n * C * V, *state = h.states + n * K * V, *go = h.grad_out + n * C * V;
    float *gq = h.grad_q + n * C * K, *gk = h.grad_k + n * C * K, *gv = h.grad_v + n * C * V;
    transpose(C, K, k, kt);
    transpose(C, V, u, ut);
    transpose(K, V, state, st);
    transpose(K, V, h.grad_state, gst);
    product_lower(C, K, q, kt, score);
    clear_above(C, score, false);
    product_lower(C, K, k, kt, kk);
    clear_above(C, kk, true);
    scale_lower(C, kk, beta, m);
    product_lower(C, V, go, ut, gscore);
    clear_above(C, gscore, false);

    product<Into::set>(C, V, K, k, K, 1, h.grad_state, V, gr, V);  // of U
    add_lower_transposed(C, V, score, go, gr);
    solve_lower_transposed(C, V, m, gr);  // of R = beta (V - K S)
    product_lower(C, V, gr, ut, gm);      // of M, but for its sign
    clear_above(C, gm, true);
    product<Into::set>(C, V, K, k, K, 1, state, V, read, V);
    for (int64_t r = 0; r < C; r++) {
      Lane sum = Lane{};
      for (int64_t c = 0; c < V; c += KINFOLK_LANES) {
        const Lane g = load(gr + r * V + c);
        sum = sum + g * (load(v + r * V + c) - load(read + r * V + c));
        store(gv + r * V + c, all(beta[r]) * g);
        store(read + r * V + c, all(-beta[r]) * g);  // of K S, from here on
      }
      for (int64_t c = 0; c < (r / 16 + 1) * 16; c += KINFOLK_LANES) {
        const Lane g = load(gm + r * C + c);
        sum = sum - g * load(kk + r * C + c);
        store(gm + r * C + c, all(-beta[r]) * g);  // of K K^T, from here on
      }
      h.grad_beta[n * C + r] = sum_of(sum);
    }
    product<Into::set>(C, K, V, go, V, 1, st, K, gq, K);
    add_lower(C, K, gscore, k, gq);
    product<Into::set>(C, K, V, u, V, 1, gst, K, gk, K);
    product<Into::add>(C, K, V, read, V, 1, st, K, gk, K);
    add_lower_transposed(C, K, gscore, q, gk);
    add_lower(C, K, gm, k, gk);
    add_lower_transposed(C, K, gm, k, gk);
    product<Into::add>(K, V, C, q, 1, K, go, V, h.grad_state, V);
    product<Into::add>(K, V, C, k, 1, K, read, V, h.grad_state, V);
  }
}
