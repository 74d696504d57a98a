// A decay for each token and key channel over one head, in inner chunks of T = 16 tokens; included after
// scan_decay_body.h. Inside an inner chunk every pair of tokens has its own products of decays, formed by walking from
// the later token back to the earlier one.

/// qa_i = a_0 ... a_i q_i, kb_j = a_(j+1) ... a_(T-1) k_j, whole = a_0 ... a_(T-1), channel by channel.
inline void spread_channels(int64_t K, const float* q, const float* k, const float* a, float* qa, float* kb,
                            float* whole) {
  for (int64_t c = 0; c < K; c += KINFOLK_LANES) {
    Lane left = all(1);
    for (int64_t i = 0; i < kInner; i++) {
      left = left * load(a + i * K + c);
      store(qa + i * K + c, left * load(q + i * K + c));
    }
    store(whole + c, left);
    left = all(1);
    for (int64_t j = kInner - 1; j >= 0; j--) {
      store(kb + j * K + c, left * load(k + j * K + c));
      left = left * load(a + j * K + c);
    }
  }
}

/// S <- diag(whole) S + kb^T v
inline void step_state(int64_t K, int64_t V, const float* whole, const float* kb, const float* v, float* state) {
  scale_rows(K, V, state, whole, state);
  product<Into::add>(K, V, kInner, kb, 1, K, v, V, state, V);
}

/// score_ij = sum over channels of q_i a_(j+1) ... a_i k_j for j <= i, 0 above.
inline void channel_scores(int64_t K, const float* q, const float* k, const float* a, float* score) {
  for (int64_t i = 0; i < kInner; i++) {
    Lane sums[kInner] = {};
    for (int64_t c = 0; c < K; c += KINFOLK_LANES) {
      Lane w = load(q + i * K + c);
      for (int64_t j = i; j >= 0; j--) {
        sums[j] = sums[j] + w * load(k + j * K + c);
        w = w * load(a + j * K + c);
      }
    }
    for (int64_t j = 0; j < kInner; j++) score[i * kInner + j] = j <= i ? lane_sum(sums[j]) : 0;
  }
}

void channel_forward(const DecaySizes& z, const DecayForward& h, float* scratch) {
  const int64_t K = z.keys, V = z.values, T = kInner, inner = z.size / T;
  float *qa = scratch, *kb = qa + T * K, *whole = kb + T * K, *score = whole + K;
  for (int64_t n = 0; n < z.chunks * inner; n++) {
    const float *q = h.q + n * T * K, *k = h.k + n * T * K, *a = h.decay + n * T * K, *v = h.v + n * T * V;
    float* out = h.out + n * T * V;
    if (h.states && n % inner == 0) copy_all(K * V, h.state, h.states + n / inner * K * V);
    spread_channels(K, q, k, a, qa, kb, whole);
    channel_scores(K, q, k, a, score);
    product<Into::set>(T, V, K, qa, K, 1, h.state, V, out, V);
    product<Into::add>(T, V, T, score, T, 1, v, V, out, V);
    if (z.scale != 1) scale_all(T * V, z.scale, out);
    step_state(K, V, whole, kb, v, h.state);
  }
}

/// Gradients inside an inner chunk. On entry gq = dO S^T and gk = V dS^T; corner = sum over values of S dS; gscore =
/// dO V^T. H_i dO_i, walked forward from gq, is the gradient of q_i, and its values on the way times the decays walked
/// back from q_i are those of the decays; the same with the state at the end for the last walk.
inline void channel_gradients(int64_t K, const float* q, const float* k, const float* a, const float* gscore,
                              const float* corner, float* gq, float* gk, float* ga, float* score) {
  constexpr int64_t T = kInner;
  Lane sums[T][T] = {};
  for (int64_t c = 0; c < K; c += KINFOLK_LANES) {
    Lane passed[T], dk[T], da[T], as[T], ks[T];
    for (int64_t u = 0; u < T; u++) as[u] = load(a + u * K + c), ks[u] = load(k + u * K + c);
    Lane walk = load(corner + c), left = all(1);
    for (int64_t u = 0; u < T; u++) {
      passed[u] = walk;
      walk = as[u] * walk + ks[u] * load(gk + u * K + c);
    }
    for (int64_t u = T - 1; u >= 0; u--) {
      da[u] = left * passed[u];
      dk[u] = left * load(gk + u * K + c);
      left = left * as[u];
    }
    for (int64_t i = 0; i < T; i++) {
      walk = load(gq + i * K + c);
      for (int64_t u = 0; u <= i; u++) {
        passed[u] = walk;
        walk = as[u] * walk + all(gscore[i * T + u]) * ks[u];
      }
      store(gq + i * K + c, walk);
      Lane w = load(q + i * K + c);
      for (int64_t u = i; u >= 0; u--) {
        dk[u] = dk[u] + all(gscore[i * T + u]) * w;
        da[u] = da[u] + w * passed[u];
        sums[i][u] = sums[i][u] + w * ks[u];
        w = w * as[u];
      }
    }
    for (int64_t u = 0; u < T; u++) store(gk + u * K + c, dk[u]), store(ga + u * K + c, da[u]);
  }
  for (int64_t i = 0; i < T; i++) {
    for (int64_t u = 0; u < T; u++) score[i * T + u] = u <= i ? lane_sum(sums[i][u]) : 0;
  }
}

void channel_backward(const DecaySizes& z, const DecayBackward& h, float* scratch) {
  const int64_t K = z.keys, V = z.values, T = kInner, inner = z.size / T, square = K * V;
  float *states = scratch, *st = states + inner * square, *gst = st + square, *qa = gst + square, *kb = qa + T * K,
        *vt = kb + T * K, *score = vt + T * V, *gscore = score + T * T, *whole = gscore + T * T, *corner = whole + K,
        *go = corner + K;
  for (int64_t n = z.chunks - 1; n >= 0; n--) {
    copy_all(square, h.states + n * square, states);
    for (int64_t s = 0; s + 1 < inner; s++) {  // the states between the inner chunks, again
      const int64_t at = n * inner + s;
      float* next = states + (s + 1) * square;
      spread_channels(K, h.q + at * T * K, h.k + at * T * K, h.decay + at * T * K, qa, kb, whole);
      copy_all(square, states + s * square, next);
      step_state(K, V, whole, kb, h.v + at * T * V, next);
    }
    for (int64_t s = inner - 1; s >= 0; s--) {
      const int64_t at = n * inner + s;
      const float *q = h.q + at * T * K, *k = h.k + at * T * K, *a = h.decay + at * T * K, *v = h.v + at * T * V;
      float *gq = h.grad_q + at * T * K, *gk = h.grad_k + at * T * K, *gv = h.grad_v + at * T * V;
      copy_scaled(T * V, z.scale, h.grad_out + at * T * V, go);
      transpose(K, V, states + s * square, st);
      transpose(K, V, h.grad_state, gst);
      transpose(T, V, v, vt);
      for (int64_t c = 0; c < K; c += KINFOLK_LANES) {
        Lane sum = {};
        for (int64_t r = 0; r < V; r++) sum = sum + load(st + r * K + c) * load(gst + r * K + c);
        store(corner + c, sum);
      }
      product<Into::set>(T, K, V, go, V, 1, st, K, gq, K);
      product<Into::set>(T, K, V, v, V, 1, gst, K, gk, K);
      product<Into::set>(T, T, V, go, V, 1, vt, T, gscore, T);
      spread_channels(K, q, k, a, qa, kb, whole);
      channel_gradients(K, q, k, a, gscore, corner, gq, gk, h.grad_decay + at * T * K, score);
      product<Into::set>(T, V, K, kb, K, 1, h.grad_state, V, gv, V);
      product<Into::add>(T, V, T, score, 1, T, go, V, gv, V);
      scale_rows(K, V, h.grad_state, whole, h.grad_state);
      product<Into::add>(K, V, T, qa, 1, K, go, V, h.grad_state, V);
    }
  }
}
