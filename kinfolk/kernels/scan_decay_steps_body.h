// Columns of the state, N vectors of them at a time, walked over all tokens; included once for each instruction set,
// after tile_body.h.

/// [a_0 + a_1, a_2 + a_3, ..., b_0 + b_1, ...]
KINFOLK_INLINE Lane add_neighbours(Lane a, Lane b) {
#if KINFOLK_LANES == 16
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif KINFOLK_LANES == 8
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
}
/// The sums of the lanes of as many vectors as a vector has lanes.
template <int count>
KINFOLK_INLINE Lane sum_tree(const Lane* from) {
  if constexpr (count == 1) {
    return from[0];
  } else {
    return add_neighbours(sum_tree<count / 2>(from), sum_tree<count / 2>(from + count / 2));
  }
}
/// to[i] (+)= the sum of the lanes of from[i], for 16 vectors.
KINFOLK_INLINE void sum_lanes(const Lane* from, bool add, float* to) {
  KINFOLK_UNROLL
  for (int64_t at = 0; at < 16; at += KINFOLK_LANES) {
    const Lane sums = sum_tree<KINFOLK_LANES>(from + at);
    store(to + at, add ? load(to + at) + sums : sums);
  }
}

/// Tokens of columns [c, c + N vectors). `each`: a decay for each key.
template <int N, bool each, bool before>
KINFOLK_NOINLINE void forward_columns(const DecayStepSizes& z, const DecayStepForward& h, int64_t c) {
  const int64_t K = z.keys, V = z.values;
  for (int64_t t = 0; t < z.tokens; t++) {
    const float *q = h.q.data + t * h.q.step, *k = h.k.data + t * h.k.step,
                *a = z.decays > 0 ? h.key.data + t * h.key.step : nullptr;
    Lane e[N], v[N], out[N];
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) {
      e[n] = h.value.data ? load(h.value.data + t * h.value.step + c + n * KINFOLK_LANES) : all(1);
      if (!each && a) e[n] = e[n] * all(a[0]);
      v[n] = load(h.v.data + t * h.v.step + c + n * KINFOLK_LANES);
      out[n] = Lane{};
    }
    float* state = h.state + c;
    if (h.states && t % z.every == 0) {
      float* kept = h.states + t / z.every * K * V + c;
      for (int64_t r = 0; r < K; r++) {
        KINFOLK_UNROLL
        for (int n = 0; n < N; n++) store(kept + r * V + n * KINFOLK_LANES, load(state + r * V + n * KINFOLK_LANES));
      }
    }
    for (int64_t r = 0; r < K; r++) {
      const Lane qr = all(q[r]), kr = all(k[r]), ar = all(each ? a[r] : 1);
      KINFOLK_UNROLL
      for (int n = 0; n < N; n++) {
        float* at = state + r * V + n * KINFOLK_LANES;
        const Lane old = load(at), s = old * (each ? ar * e[n] : e[n]) + kr * v[n];
        store(at, s);
        out[n] = out[n] + qr * (before ? old : s);
      }
    }
    if (before && h.bonus) {
      float own = 0;
      for (int64_t r = 0; r < K; r++) own += q[r] * h.bonus[r] * k[r];
      KINFOLK_UNROLL
      for (int n = 0; n < N; n++) out[n] = out[n] + all(own) * v[n];
    }
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) {
      store(h.out.data + t * h.out.step + c + n * KINFOLK_LANES, all(z.scale) * out[n]);
    }
  }
}

/// The same for column c alone.
inline void forward_column(const DecayStepSizes& z, const DecayStepForward& h, int64_t c) {
  const int64_t K = z.keys, V = z.values;
  for (int64_t t = 0; t < z.tokens; t++) {
    const float *q = h.q.data + t * h.q.step, *k = h.k.data + t * h.k.step,
                *a = z.decays > 0 ? h.key.data + t * h.key.step : nullptr;
    const float e = h.value.data ? h.value.data[t * h.value.step + c] : 1, v = h.v.data[t * h.v.step + c];
    float out = 0;
    for (int64_t r = 0; r < K; r++) {
      float* at = h.state + r * V + c;
      if (h.states && t % z.every == 0) h.states[t / z.every * K * V + r * V + c] = *at;
      const float old = *at;
      *at = old * ((a ? a[z.decays > 1 ? r : 0] : 1) * e) + k[r] * v;
      out += q[r] * (z.before ? old + (h.bonus ? h.bonus[r] * k[r] * v : 0) : *at);
    }
    h.out.data[t * h.out.step + c] = z.scale * out;
  }
}

template <bool each, bool before>
KINFOLK_INLINE void forward_all(const DecayStepSizes& z, const DecayStepForward& h) {
  int64_t c = 0;
  constexpr int64_t kWide = KINFOLK_COLUMNS * KINFOLK_LANES;
  for (; c + kWide <= z.values; c += kWide) forward_columns<KINFOLK_COLUMNS, each, before>(z, h, c);
  for (; c + KINFOLK_LANES <= z.values; c += KINFOLK_LANES) forward_columns<1, each, before>(z, h, c);
  for (; c < z.values; c++) forward_column(z, h, c);
}
inline void forward_state(const DecayStepSizes& z, const DecayStepForward& h) {
  if (z.decays > 1) {
    z.before ? forward_all<true, true>(z, h) : forward_all<true, false>(z, h);
  } else {
    z.before ? forward_all<false, true>(z, h) : forward_all<false, false>(z, h);
  }
}

/// With a sum, each token has a scale of its own.
void forward(const DecayStepSizes& z, const DecayStepForward& h) {
  if (!h.sum) return forward_state(z, h);
  DecayStepSizes one = z;
  one.tokens = one.every = 1;
  for (int64_t t = 0; t < z.tokens; t++) {
    const auto from = [&](auto rows) {
      if (rows.data) rows.data += t * rows.step;
      return rows;
    };
    DecayStepForward token = h;
    token.q = from(h.q), token.k = from(h.k), token.v = from(h.v), token.out = from(h.out);
    token.key = from(h.key), token.value = from(h.value);
    float divisor = 0;
    for (int64_t r = 0; r < z.keys; r++) {
      const float a = z.decays == 0 ? 1 : token.key.data[z.decays > 1 ? r : 0], old = h.sum[r];
      h.sum[r] = a * old + token.k.data[r];
      divisor += token.q.data[r] * (z.before ? old : h.sum[r]);
    }
    one.scale = z.scale / (z.scale * divisor + z.eps);
    forward_state(one, token);
  }
}

/// The tokens [from, until) of columns [c, c + N vectors), from the state before them in h.states. Keys go by kKeys:
/// the states of a few rows once more, forward, into scratch; then back, with
///   G_t = q_t do_t^T + (a_(t+1) e_(t+1)^T) (.) G_(t+1), dq = S do, dk = G v, dv = G^T k,
///   da = (G (.) S_(t-1)) e, de = (G (.) S_(t-1))^T a.
template <int N, bool each>
KINFOLK_NOINLINE void backward_columns(const DecayStepSizes& z, const DecayStepBackward& h, int64_t from, int64_t until,
                                       int64_t c, float* scratch) {
  constexpr int64_t kRow = N * KINFOLK_LANES, kTile = kKeys * kRow;
  const int64_t K = z.keys, V = z.values;
  const bool more = c > 0;  // other columns have been here: their sums are added to
  for (int64_t top = 0; top < K; top += kKeys) {
    const int64_t rows = std::min(kKeys, K - top);
    const float* first = h.states + from / z.every * K * V + top * V + c;
    for (int64_t r = 0; r < rows; r++) {
      KINFOLK_UNROLL
      for (int n = 0; n < N; n++) {
        store(scratch + r * kRow + n * KINFOLK_LANES, load(first + r * V + n * KINFOLK_LANES));
      }
    }
    for (int64_t t = from; t < until; t++) {
      const float *k = h.k.data + t * h.k.step + top, *a = each ? h.key.data + t * h.key.step + top : nullptr,
                  *s = scratch + (t - from) * kTile;
      Lane e[N], v[N];
      KINFOLK_UNROLL
      for (int n = 0; n < N; n++) {
        e[n] = h.value.data ? load(h.value.data + t * h.value.step + c + n * KINFOLK_LANES) : all(1);
        v[n] = load(h.v.data + t * h.v.step + c + n * KINFOLK_LANES);
      }
      for (int64_t r = 0; r < rows; r++) {
        const Lane kr = all(k[r]), ar = all(each ? a[r] : 1);
        KINFOLK_UNROLL
        for (int n = 0; n < N; n++) {
          const int64_t at = r * kRow + n * KINFOLK_LANES;
          store(scratch + (t - from + 1) * kTile + at, load(s + at) * (each ? ar * e[n] : e[n]) + kr * v[n]);
        }
      }
    }
    float* grad = h.grad_state + top * V + c;
    for (int64_t t = until - 1; t >= from; t--) {
      const float *q = h.q.data + t * h.q.step + top, *k = h.k.data + t * h.k.step + top,
                  *a = each ? h.key.data + t * h.key.step + top : nullptr, *before = scratch + (t - from) * kTile,
                  *after = before + kTile;
      Lane e[N], v[N], go[N], gv[N], ge[N];
      KINFOLK_UNROLL
      for (int n = 0; n < N; n++) {
        e[n] = h.value.data ? load(h.value.data + t * h.value.step + c + n * KINFOLK_LANES) : all(1);
        v[n] = load(h.v.data + t * h.v.step + c + n * KINFOLK_LANES);
        go[n] = all(z.scale) * load(h.grad_out.data + t * h.grad_out.step + c + n * KINFOLK_LANES);
        gv[n] = ge[n] = Lane{};
      }
      Lane gq[kKeys], gk[kKeys], ga[kKeys];
      for (int64_t r = 0; r < rows; r++) {
        const Lane qr = all(q[r]), kr = all(k[r]), ar = all(each ? a[r] : 1);
        Lane by_q{}, by_k{}, by_a{};
        KINFOLK_UNROLL
        for (int n = 0; n < N; n++) {
          const int64_t at = r * kRow + n * KINFOLK_LANES;
          float* to = grad + r * V + n * KINFOLK_LANES;
          const Lane g = load(to) + qr * go[n], passed = g * load(before + at);
          by_q = by_q + load(after + at) * go[n];
          by_k = by_k + g * v[n];
          gv[n] = gv[n] + kr * g;
          if (each) {
            by_a = by_a + passed * e[n];
            ge[n] = ge[n] + ar * passed;
          } else {
            ge[n] = ge[n] + passed;
          }
          store(to, g * (each ? ar * e[n] : e[n]));
        }
        gq[r] = by_q, gk[r] = by_k, ga[r] = by_a;
      }
      const auto put = [&](Lane* sums, const Rows<float>& to) {
        float* row = to.data + t * to.step + top;
        if (rows == kKeys) return sum_lanes(sums, more, row);
        float all_sums[kKeys];
        for (int64_t r = rows; r < kKeys; r++) sums[r] = Lane{};
        sum_lanes(sums, false, all_sums);
        for (int64_t r = 0; r < rows; r++) row[r] = more ? row[r] + all_sums[r] : all_sums[r];
      };
      put(gq, h.grad_q), put(gk, h.grad_k);
      if (each) put(ga, h.grad_key);
      KINFOLK_UNROLL
      for (int n = 0; n < N; n++) {
        float* to = h.grad_v.data + t * h.grad_v.step + c + n * KINFOLK_LANES;
        store(to, top > 0 ? load(to) + gv[n] : gv[n]);
        if (!h.grad_value.data) continue;
        to = h.grad_value.data + t * h.grad_value.step + c + n * KINFOLK_LANES;
        store(to, top > 0 ? load(to) + ge[n] : ge[n]);
      }
    }
  }
}

template <bool each>
KINFOLK_INLINE void backward_all(const DecayStepSizes& z, const DecayStepBackward& h, float* scratch) {
  constexpr int64_t kWide = KINFOLK_COLUMNS * KINFOLK_LANES;
  for (int64_t from = (z.tokens - 1) / z.every * z.every; from >= 0; from -= z.every) {
    const int64_t until = std::min(z.tokens, from + z.every);
    int64_t c = 0;
    for (; c + kWide <= z.values; c += kWide) {
      backward_columns<KINFOLK_COLUMNS, each>(z, h, from, until, c, scratch);
    }
    for (; c < z.values; c += KINFOLK_LANES) backward_columns<1, each>(z, h, from, until, c, scratch);
  }
}
void backward(const DecayStepSizes& z, const DecayStepBackward& h, float* scratch) {
  if (z.tokens == 0) return;
  z.decays > 0 ? backward_all<true>(z, h, scratch) : backward_all<false>(z, h, scratch);
}
