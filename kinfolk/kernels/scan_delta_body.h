// The delta rule over one head, on the tiles of tile_body.h; included once for each instruction set, like it.
#include "kinfolk/kernels/lane_math_body.h"

/// Rows r of t [size, size], up to their block of 16 columns, times factor[r].
inline void scale_lower(int64_t size, const float* from, const float* factor, float* to) {
  for (int64_t r = 0; r < size; r++) {
    for (int64_t c = 0; c < (r / 16 + 1) * 16; c += KINFOLK_LANES) {
      store(to + r * size + c, all(factor[r]) * load(from + r * size + c));
    }
  }
}
/// The same, entry by entry.
inline void times_lower(int64_t size, const float* factor, float* t) {
  for (int64_t r = 0; r < size; r++) {
    for (int64_t c = 0; c < (r / 16 + 1) * 16; c += KINFOLK_LANES) {
      store(t + r * size + c, load(factor + r * size + c) * load(t + r * size + c));
    }
  }
}
/// Rows r of t [rows, columns] times factor[r].
inline void scale_rows(int64_t rows, int64_t columns, const float* from, const float* factor, float* to) {
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c += KINFOLK_LANES) {
      store(to + r * columns + c, all(factor[r]) * load(from + r * columns + c));
    }
  }
}
inline float dot(int64_t count, const float* a, const float* b) {
  Lane sum = Lane{};
  for (int64_t i = 0; i < count; i += KINFOLK_LANES) sum = sum + load(a + i) * load(b + i);
  return sum_of(sum);
}
inline void copy(const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; i += KINFOLK_LANES) store(to + i, load(from + i));
}

/// How much is left between the tokens of a chunk: f [C, C] (zero above the diagonal, one on it), `alive` [C] from the
/// state before the chunk to each token; `last`, from each token to the end, is the last row of f.
struct Left {
  float *f, *alive;
  const float* last;
  float whole;
  Left(int64_t size, const float* log_decay, float* scratch) : f(scratch), alive(f + size * size) {
    last = f + (size - 1) * size;
    for (int64_t c = 0; c < size; c += KINFOLK_LANES) store(alive + c, exponential(load(log_decay + c)));
    const Lane least = all(1.2e-38f);  // the smallest normal number: denormals would cost an assist each
    for (int64_t r = 0; r < size; r++) {
      const float decay = alive[r];
      for (int64_t c = 0; c < size; c += KINFOLK_LANES) {
        const Lane next = r > 0 ? all(decay) * load(f + (r - 1) * size + c) : Lane{};
        store(f + r * size + c, next < least ? Lane{} : next);
      }
      f[r * size + r] = 1;
      if (r > 0) alive[r] = decay * alive[r - 1];
      if (alive[r] < 1.2e-38f) alive[r] = 0;
    }
    whole = alive[size - 1];
  }
};

template <bool gated>
inline void forward_chunks(const DeltaSizes& z, const DeltaForward& h, float* scratch) {
  const int64_t C = z.size, K = z.keys, V = z.values;
  float *kt = scratch, *m = kt + C * K, *score = m + C * C, *kept = score + C * C, *factors = kept + C * V;
  for (int64_t n = 0; n < z.chunks; n++) {
    const float *q = h.q + n * C * K, *k = h.k + n * C * K, *v = h.v + n * C * V, *beta = h.beta + n * C;
    float *out = h.out + n * C * V, *u = h.u + n * C * V;
    copy(h.state, h.states + n * K * V, K * V);
    transpose(C, K, k, kt);
    product_lower(C, K, k, kt, m);
    clear_above(C, m, true);
    scale_lower(C, m, beta, m);
    product<Into::set>(C, V, K, k, K, 1, h.state, V, u, V);
    product_lower(C, K, q, kt, score);
    clear_above(C, score, false);
    product<Into::set>(C, V, K, q, K, 1, h.state, V, out, V);
    if constexpr (gated) {
      const Left left(C, h.log_decay + n * C, factors);
      times_lower(C, left.f, m);
      times_lower(C, left.f, score);
      scale_rows(C, V, u, left.alive, u);
      scale_rows(C, V, out, left.alive, out);
      for (int64_t i = 0; i < K * V; i += KINFOLK_LANES) store(h.state + i, all(left.whole) * load(h.state + i));
    }
    for (int64_t r = 0; r < C; r++) {
      for (int64_t c = 0; c < V; c += KINFOLK_LANES) {
        store(u + r * V + c, all(beta[r]) * (load(v + r * V + c) - load(u + r * V + c)));
      }
    }
    solve_lower(C, V, m, u);
    add_lower(C, V, score, u, out);
    if constexpr (gated) scale_rows(C, V, u, factors + (C - 1) * C, kept);
    product<Into::add>(K, V, C, k, 1, K, gated ? kept : u, V, h.state, V);
  }
}

void forward(const DeltaSizes& z, const DeltaForward& h, float* scratch) {
  if (h.log_decay) {
    forward_chunks<true>(z, h, scratch);
  } else {
    forward_chunks<false>(z, h, scratch);
  }
}

/// to[u] = sum over i >= u > j of t [C, C], zero on and above its diagonal, plus what token u decays in S: the sum over
/// i >= u of seen[i], over j < u of kept[j], and `whole`. Uses up `column` [C].
inline void decay_gradient(int64_t size, const float* t, const float* seen, const float* kept, float whole,
                           float* column, float* to) {
  float before = 0, after = whole;
  for (int64_t c = 0; c < size; c += KINFOLK_LANES) store(column + c, Lane{});
  for (int64_t u = 0; u < size; u++) to[u] = before, before += kept[u];
  for (int64_t u = size - 1; u >= 0; u--) {
    after += seen[u];
    for (int64_t c = 0; c < (u / 16 + 1) * 16; c += KINFOLK_LANES) {
      store(column + c, load(column + c) + load(t + u * size + c));
    }
    float sum = 0;
    for (int64_t j = 0; j < u; j++) sum += column[j];
    to[u] += after + sum;
  }
}

template <bool gated>
inline void backward_chunks(const DeltaSizes& z, const DeltaBackward& h, float* scratch) {
  const int64_t C = z.size, K = z.keys, V = z.values;
  float *kt = scratch, *ut = kt + C * K, *st = ut + C * V, *gst = st + K * V;  // transposes: [K C], [V C], [V K] twice
  float *score = gst + K * V, *kk = score + C * C, *m = kk + C * C, *gscore = m + C * C, *gm = gscore + C * C;
  float *gr = gm + C * C, *read = gr + C * V, *seen = read + C * V;  // [C, V]
  float *factors = seen + C * V, *by_seen = factors + C * C + C, *by_kept = by_seen + C;
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
    float whole = 1;
    if constexpr (gated) {
      const Left left(C, h.log_decay + n * C, factors);
      whole = left.whole;
      times_lower(C, left.f, score);
      times_lower(C, left.f, kk);
    }
    const float *last = factors + (C - 1) * C, *alive = factors + C * C;
    scale_lower(C, kk, beta, m);
    product_lower(C, V, go, ut, gscore);
    clear_above(C, gscore, false);

    product<Into::set>(C, V, K, k, K, 1, h.grad_state, V, gr, V);  // of U
    if constexpr (gated) scale_rows(C, V, gr, last, gr);
    add_lower_transposed(C, V, score, go, gr);
    solve_lower_transposed(C, V, m, gr);  // of R = beta (V - K S)
    product_lower(C, V, gr, ut, gm);      // of M, but for its sign
    clear_above(C, gm, true);
    product<Into::set>(C, V, K, k, K, 1, state, V, read, V);
    for (int64_t r = 0; r < C; r++) {
      const float left = gated ? alive[r] : 1.f;
      Lane sum = Lane{}, by_read = Lane{};
      for (int64_t c = 0; c < V; c += KINFOLK_LANES) {
        const Lane g = load(gr + r * V + c), old = all(left) * load(read + r * V + c);
        sum = sum + g * (load(v + r * V + c) - old);
        if (gated) by_read = by_read + g * old;
        store(gv + r * V + c, all(beta[r]) * g);
        store(read + r * V + c, all(-beta[r] * left) * g);  // of K S, from here on
      }
      for (int64_t c = 0; c < (r / 16 + 1) * 16; c += KINFOLK_LANES) {
        const Lane g = load(gm + r * C + c);
        sum = sum - g * load(kk + r * C + c);
        store(gm + r * C + c, all(-beta[r]) * g);  // of K K^T, from here on
      }
      h.grad_beta[n * C + r] = sum_of(sum);
      if constexpr (gated) by_seen[r] = -beta[r] * sum_of(by_read);
    }
    product<Into::set>(C, K, V, go, V, 1, st, K, gq, K);
    product<Into::set>(C, K, V, u, V, 1, gst, K, gk, K);
    if constexpr (gated) {
      scale_rows(C, K, gq, alive, gq);
      scale_rows(C, K, gk, last, gk);
      for (int64_t r = 0; r < C; r++) {
        by_seen[r] += dot(K, q + r * K, gq + r * K);
        by_kept[r] = dot(K, k + r * K, gk + r * K);
        for (int64_t c = 0; c < (r / 16 + 1) * 16; c += KINFOLK_LANES) {  // of log f
          const int64_t at = r * C + c;
          store(m + at, load(gm + at) * load(kk + at) + load(gscore + at) * load(score + at));
        }
      }
      for (int64_t r = 0; r < C; r++) m[r * C + r] = 0;
      times_lower(C, factors, gscore);
      times_lower(C, factors, gm);
      // `kt` is read no more.
      decay_gradient(C, m, by_seen, by_kept, whole * dot(K * V, h.grad_state, state), kt, h.grad_log_decay + n * C);
      scale_rows(C, V, go, alive, seen);
      for (int64_t i = 0; i < K * V; i += KINFOLK_LANES) store(h.grad_state + i, all(whole) * load(h.grad_state + i));
    }
    add_lower(C, K, gscore, k, gq);
    product<Into::add>(C, K, V, read, V, 1, st, K, gk, K);
    add_lower_transposed(C, K, gscore, q, gk);
    add_lower(C, K, gm, k, gk);
    add_lower_transposed(C, K, gm, k, gk);
    product<Into::add>(K, V, C, q, 1, K, gated ? seen : go, V, h.grad_state, V);
    product<Into::add>(K, V, C, k, 1, K, read, V, h.grad_state, V);
  }
}

void backward(const DeltaSizes& z, const DeltaBackward& h, float* scratch) {
  if (h.log_decay) {
    backward_chunks<true>(z, h, scratch);
  } else {
    backward_chunks<false>(z, h, scratch);
  }
}
