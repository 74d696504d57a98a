// The sum of outer products over one head, on the tiles of tile_body.h; included once for each instruction set, like
// it.

void forward(const DecaySizes& z, const DecayForward& h, float* scratch) {
  const int64_t C = z.size, K = z.keys, V = z.values;
  float *kt = scratch, *score = kt + C * K;
  for (int64_t n = 0; n < z.chunks; n++) {
    const float *q = h.q + n * C * K, *k = h.k + n * C * K, *v = h.v + n * C * V;
    float *out = h.out + n * C * V, *kept = h.states + n * K * V;
    for (int64_t i = 0; i < K * V; i += KINFOLK_LANES) store(kept + i, load(h.state + i));
    transpose(C, K, k, kt);
    product_lower(C, K, q, kt, score);
    clear_above(C, score, false);
    product<Into::set>(C, V, K, q, K, 1, h.state, V, out, V);
    add_lower(C, V, score, v, out);
    product<Into::add>(K, V, C, k, 1, K, v, V, h.state, V);
  }
}

void backward(const DecaySizes& z, const DecayBackward& h, float* scratch) {
  const int64_t C = z.size, K = z.keys, V = z.values;
  float *kt = scratch, *vt = kt + C * K, *st = vt + C * V, *gst = st + K * V, *score = gst + K * V,
        *gscore = score + C * C;
  for (int64_t n = z.chunks - 1; n >= 0; n--) {
    const float *q = h.q + n * C * K, *k = h.k + n * C * K, *v = h.v + n * C * V, *go = h.grad_out + n * C * V;
    float *gq = h.grad_q + n * C * K, *gk = h.grad_k + n * C * K, *gv = h.grad_v + n * C * V;
    transpose(C, K, k, kt);
    transpose(C, V, v, vt);
    transpose(K, V, h.states + n * K * V, st);
    transpose(K, V, h.grad_state, gst);
    product_lower(C, K, q, kt, score);
    clear_above(C, score, false);
    product_lower(C, V, go, vt, gscore);
    clear_above(C, gscore, false);
    product<Into::set>(C, K, V, go, V, 1, st, K, gq, K);
    add_lower(C, K, gscore, k, gq);
    product<Into::set>(C, K, V, v, V, 1, gst, K, gk, K);
    add_lower_transposed(C, K, gscore, q, gk);
    product<Into::set>(C, V, K, k, K, 1, h.grad_state, V, gv, V);
    add_lower_transposed(C, V, score, go, gv);
    product<Into::add>(K, V, C, q, 1, K, go, V, h.grad_state, V);
  }
}
