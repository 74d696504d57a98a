// The selective scan over blocks of channels, one channel a lane of a vector; included once for each instruction set,
// after tile_body.h. A chunk of tokens goes through a few states at a time, so that these stay in registers.
#include "kinfolk/kernels/lane_math_body.h"

constexpr int64_t kTokens = kSelectiveTokens;
constexpr int kGroup = KINFOLK_LANES == 16 ? 8 : 4;

/// phi = (e^w - 1) / w with e = e^w, and its derivative.
KINFOLK_INLINE Lane quotient(Lane w, Lane e) {
  Lane p = all(1.f / 40320);
  p = p * w + all(1.f / 5040);
  p = p * w + all(1.f / 720);
  p = p * w + all(1.f / 120);
  p = p * w + all(1.f / 24);
  p = p * w + all(1.f / 6);
  p = p * w + all(1.f / 2);
  p = p * w + all(1.f);
  const LaneInt near = magnitude(w) < all(0.5f);
  return near ? p : (e - all(1.f)) / (near ? all(1.f) : w);
}
KINFOLK_INLINE Lane quotient_slope(Lane w, Lane e, Lane phi) {
  Lane p = all(1.f / 45360);
  p = p * w + all(1.f / 5760);
  p = p * w + all(1.f / 840);
  p = p * w + all(1.f / 144);
  p = p * w + all(1.f / 30);
  p = p * w + all(1.f / 8);
  p = p * w + all(1.f / 3);
  p = p * w + all(1.f / 2);
  const LaneInt near = magnitude(w) < all(0.5f);
  return near ? p : (e - phi) / (near ? all(1.f) : w);
}

/// The valid tokens of a chunk, and their values in a block of channels, one vector a token.
struct Chunk {
  int64_t count = 0, at[kTokens];
  bool first[kTokens];
  float *step, *input, *y;  // d, d x, sums of C h
  // Backward: sigmoid(delta), sigmoid(z), the gradient of y, and sums for the gradients of x and d.
  float *slope, *gate, *grad_y, *sum_b, *sum_a, *sum_e;

  explicit Chunk(float*& scratch) {
    for (float** part : {&step, &input, &y, &slope, &gate, &grad_y, &sum_b, &sum_a, &sum_e}) {
      *part = scratch;
      scratch += kTokens * KINFOLK_LANES;
    }
  }
  void choose(const SelectiveSizes& z, const uint8_t* marks, int64_t from) {
    count = 0;
    for (int64_t t = from; t < z.tokens && t < from + kTokens; t++) {
      if (marks && (marks[t] & kSelectiveSkip)) continue;
      first[count] = marks && (marks[t] & kSelectiveFirst);
      at[count++] = t;
    }
  }
};

/// The rows of one token lie apart by a page or more, where no hardware looks ahead.
KINFOLK_INLINE void ahead(const SelectiveRows& rows, int64_t token, int64_t channel) {
  __builtin_prefetch(rows.at(token) + channel);
}

/// d, d x and D x of the tokens.
inline void read_chunk(const SelectiveSizes& z, const SelectiveForward& s, int64_t d, Chunk& chunk, bool backward) {
  const Lane bias = load(s.bias + d), skip = load(s.skip + d);
  for (int64_t i = 0; i < chunk.count; i++) {
    const int64_t t = chunk.at[i], later = t + 8 < z.tokens ? t + 8 : t;
    ahead(s.x, later, d);
    ahead(s.delta, later, d);
    const Lane x = load(s.x.at(t) + d), raw = load(s.delta.at(t) + d) + bias;
    Lane step = raw, slope = all(1.f);
    if (z.softplus) {
      const Lane e = exponential(-magnitude(raw));
      step = softplus_from(raw, e);
      slope = sigmoid_from(raw, e);
    }
    store(chunk.step + i * KINFOLK_LANES, step);
    store(chunk.input + i * KINFOLK_LANES, step * x);
    store(chunk.y + i * KINFOLK_LANES, skip * x);
    if (backward) store(chunk.slope + i * KINFOLK_LANES, slope);
  }
}

/// G states of a block of channels through a chunk; rate = A log2(e).
template <int G, bool zoh, bool keep>
KINFOLK_NOINLINE void forward_group(const Chunk& chunk, const SelectiveRows& b, const SelectiveRows& c, int64_t n,
                                    const float* rates, float* state, float* states, float* decays) {
  Lane rate[G], held[G];
  KINFOLK_UNROLL
  for (int g = 0; g < G; g++) {
    rate[g] = load(rates + g * KINFOLK_LANES);
    held[g] = load(state + g * KINFOLK_LANES);
    if (keep) store(states + g * KINFOLK_LANES, held[g]);
  }
  for (int64_t i = 0; i < chunk.count; i++) {
    const float *bt = b.at(chunk.at[i]) + n, *ct = c.at(chunk.at[i]) + n;
    const Lane step = load(chunk.step + i * KINFOLK_LANES), input = load(chunk.input + i * KINFOLK_LANES);
    Lane y = load(chunk.y + i * KINFOLK_LANES);
    if (chunk.first[i]) {
      KINFOLK_UNROLL
      for (int g = 0; g < G; g++) held[g] = Lane{};
    }
    KINFOLK_UNROLL
    for (int g = 0; g < G; g++) {
      const Lane power = step * rate[g], e = power_of_two(power);
      Lane u = input * all(bt[g]);
      if (zoh) u = u * quotient(power * all(kLnOf2), e);
      held[g] = e * held[g] + u;
      if (keep) {
        store(decays + (i * G + g) * KINFOLK_LANES, e);
        store(states + ((i + 1) * G + g) * KINFOLK_LANES, held[g]);
      } else {
        y = y + held[g] * all(ct[g]);
      }
    }
    if (!keep) store(chunk.y + i * KINFOLK_LANES, y);
  }
  KINFOLK_UNROLL
  for (int g = 0; g < G; g++) {
    if (!keep) store(state + g * KINFOLK_LANES, held[g]);
  }
}

/// The same from the last token to the first, after forward_group has kept the states before and after each token.
template <int G, bool zoh>
KINFOLK_NOINLINE void backward_group(const Chunk& chunk, const SelectiveRows& b, const SelectiveRows& c, int64_t n,
                                     const float* rates, float* grad_state, float* grad_rate, const float* states,
                                     const float* decays, float* sums_b, float* sums_c) {
  Lane rate[G], back[G], sum[G];
  KINFOLK_UNROLL
  for (int g = 0; g < G; g++) {
    rate[g] = load(rates + g * KINFOLK_LANES);
    back[g] = load(grad_state + g * KINFOLK_LANES);
    sum[g] = load(grad_rate + g * KINFOLK_LANES);
  }
  for (int64_t i = chunk.count - 1; i >= 0; i--) {
    const float *bt = b.at(chunk.at[i]) + n, *ct = c.at(chunk.at[i]) + n;
    const int64_t here = i * KINFOLK_LANES;
    const Lane step = load(chunk.step + here), input = load(chunk.input + here), gy = load(chunk.grad_y + here);
    const Lane goes_on = all(chunk.first[i] ? 0.f : 1.f);
    Lane y = load(chunk.y + here), by_b = load(chunk.sum_b + here), by_a = load(chunk.sum_a + here);
    Lane by_e = zoh ? load(chunk.sum_e + here) : Lane{};
    KINFOLK_UNROLL
    for (int g = 0; g < G; g++) {
      const Lane before = load(states + (i * G + g) * KINFOLK_LANES);
      const Lane h = load(states + ((i + 1) * G + g) * KINFOLK_LANES);
      const Lane e = load(decays + (i * G + g) * KINFOLK_LANES);
      const Lane grad = gy * all(ct[g]) + back[g];
      y = y + h * all(ct[g]);
      float *sc = sums_c + g * kTokens * KINFOLK_LANES + here, *sb = sums_b + g * kTokens * KINFOLK_LANES + here;
      store(sc, load(sc) + gy * h);
      const Lane weighed = grad * all(bt[g]);
      const Lane through = grad * goes_on * e, power = through * before;
      if (zoh) {
        const Lane w = step * rate[g] * all(kLnOf2), phi = quotient(w, e);
        store(sb, load(sb) + grad * (input * phi));
        by_b = by_b + weighed * phi;
        by_e = by_e + weighed * e;
        sum[g] = sum[g] + weighed * input * step * quotient_slope(w, e, phi);
      } else {
        store(sb, load(sb) + grad * input);
        by_b = by_b + weighed;
      }
      by_a = by_a + power * rate[g];
      sum[g] = sum[g] + power * step;
      back[g] = through;
    }
    store(chunk.y + here, y);
    store(chunk.sum_b + here, by_b);
    store(chunk.sum_a + here, by_a);
    if (zoh) store(chunk.sum_e + here, by_e);
  }
  KINFOLK_UNROLL
  for (int g = 0; g < G; g++) {
    store(grad_state + g * KINFOLK_LANES, back[g]);
    store(grad_rate + g * KINFOLK_LANES, sum[g]);
  }
}

/// to [N, lanes] = from [lanes, N], or back.
inline void columns_of(int64_t states, const float* from, float scale, float* to) {
  for (int64_t n = 0; n < states; n++) {
    for (int64_t i = 0; i < KINFOLK_LANES; i++) to[n * KINFOLK_LANES + i] = scale * from[i * states + n];
  }
}
inline void rows_of(int64_t states, const float* from, float* to) {
  for (int64_t n = 0; n < states; n++) {
    for (int64_t i = 0; i < KINFOLK_LANES; i++) to[i * states + n] = from[n * KINFOLK_LANES + i];
  }
}

/// Chunk by chunk over all channels, so that rows are read whole.
template <bool zoh>
void forward_channels(const SelectiveSizes& z, const SelectiveForward& s, int64_t from, int64_t until, float* scratch) {
  const int64_t N = z.states, vectors = N * KINFOLK_LANES;
  Chunk chunk(scratch);
  float *all_rates = scratch, *all_states = all_rates + (until - from) * N;
  for (int64_t d = from; d < until; d += KINFOLK_LANES) {
    columns_of(N, s.a + d * N, kLog2OfE, all_rates + (d - from) * N);
    columns_of(N, s.state + d * N, 1.f, all_states + (d - from) * N);
  }
  for (int64_t t = 0; t < z.tokens; t += kTokens) {
    chunk.choose(z, s.marks, t);
    for (int64_t d = from; d < until; d += KINFOLK_LANES) {
      const float* rates = all_rates + (d - from) * N;
      float* state = all_states + (d - from) * N;
      if (s.kept) {
        float* kept = s.kept + (t / kTokens * z.channels + d) * N;
        for (int64_t i = 0; i < vectors; i += KINFOLK_LANES) store(kept + i, load(state + i));
      }
      read_chunk(z, s, d, chunk, false);
      int64_t n = 0;
      for (; n + kGroup <= N; n += kGroup) {
        forward_group<kGroup, zoh, false>(chunk, s.b, s.c, n, rates + n * KINFOLK_LANES, state + n * KINFOLK_LANES,
                                          nullptr, nullptr);
      }
      for (; n < N; n++) {
        forward_group<1, zoh, false>(chunk, s.b, s.c, n, rates + n * KINFOLK_LANES, state + n * KINFOLK_LANES, nullptr,
                                     nullptr);
      }
      if (chunk.count < kTokens) {
        for (int64_t i = t; i < t + kTokens && i < z.tokens; i++) store(s.out + i * z.channels + d, Lane{});
      }
      for (int64_t i = 0; i < chunk.count; i++) {
        Lane y = load(chunk.y + i * KINFOLK_LANES);
        if (s.z.data) {
          const Lane gate = load(s.z.at(chunk.at[i]) + d);
          y = y * (gate * sigmoid(gate));
        }
        store(s.out + chunk.at[i] * z.channels + d, y);
      }
    }
  }
  for (int64_t d = from; d < until; d += KINFOLK_LANES) rows_of(N, all_states + (d - from) * N, s.state + d * N);
}

void forward(const SelectiveSizes& z, const SelectiveForward& s, int64_t from, int64_t until, float* scratch) {
  if (z.zoh) {
    forward_channels<true>(z, s, from, until, scratch);
  } else {
    forward_channels<false>(z, s, from, until, scratch);
  }
}

/// The gradient of y from that of the output.
inline void read_gradients(const SelectiveBackward& s, const SelectiveSizes& z, int64_t d, Chunk& chunk) {
  const SelectiveForward& f = s.given;
  for (int64_t i = 0; i < chunk.count; i++) {
    const int64_t here = i * KINFOLK_LANES, t = chunk.at[i], later = t + 8 < z.tokens ? t + 8 : t;
    __builtin_prefetch(s.grad_out + later * z.channels + d);
    Lane g = load(s.grad_out + t * z.channels + d);
    if (f.z.data) {
      ahead(f.z, later, d);
      const Lane gate = load(f.z.at(t) + d), sigma = sigmoid(gate);
      store(chunk.gate + here, sigma);
      g = g * (gate * sigma);
    }
    store(chunk.grad_y + here, g);
    for (float* sum : {chunk.sum_b, chunk.sum_a, chunk.sum_e}) store(sum + here, Lane{});
  }
}

template <bool zoh>
inline void write_gradients(const SelectiveBackward& s, const SelectiveSizes& z, int64_t d, const Chunk& chunk) {
  const SelectiveForward& f = s.given;
  const Lane skip = load(f.skip + d);
  Lane by_skip = load(s.grad_skip + d), by_bias = load(s.grad_bias + d);
  for (int64_t i = 0; i < chunk.count; i++) {
    const int64_t here = i * KINFOLK_LANES, t = chunk.at[i], out = t * z.channels + d;
    const Lane x = load(f.x.at(t) + d), gy = load(chunk.grad_y + here), by_input = load(chunk.sum_b + here);
    const Lane by_step = load(chunk.sum_a + here) * all(kLnOf2) + (zoh ? load(chunk.sum_e + here) : by_input) * x;
    const Lane by_raw = by_step * load(chunk.slope + here);
    store(s.grad_x + out, by_input * load(chunk.step + here) + gy * skip);
    store(s.grad_delta + out, by_raw);
    by_skip = by_skip + gy * x;
    by_bias = by_bias + by_raw;
    if (f.z.data) {
      const Lane gate = load(f.z.at(t) + d), sigma = load(chunk.gate + here);
      store(s.grad_z + out,
            load(s.grad_out + out) * load(chunk.y + here) * sigma * (all(1.f) + gate * (all(1.f) - sigma)));
    }
  }
  store(s.grad_skip + d, by_skip);
  store(s.grad_bias + d, by_bias);
}

template <bool zoh>
void backward_channels(const SelectiveSizes& z, const SelectiveBackward& s, int64_t from, int64_t until,
                       float* scratch) {
  const SelectiveForward& f = s.given;
  const int64_t N = z.states, vectors = N * KINFOLK_LANES;
  Chunk chunk(scratch);
  float *states = scratch, *decays = states + (kTokens + 1) * kGroup * KINFOLK_LANES;
  float *rates = decays + kTokens * kGroup * KINFOLK_LANES, *start = rates + vectors;
  float *sums_b = start + vectors, *sums_c = sums_b + kTokens * vectors;
  float *grad_state = sums_c + kTokens * vectors, *grad_rate = grad_state + (until - from) * N;
  for (int64_t d = from; d < until; d += KINFOLK_LANES) {
    columns_of(N, s.grad_state + d * N, 1.f, grad_state + (d - from) * N);
    for (int64_t n = 0; n < N; n++) store(grad_rate + (d - from) * N + n * KINFOLK_LANES, Lane{});
  }
  for (int64_t t = (z.tokens - 1) / kTokens * kTokens; t >= 0; t -= kTokens) {
    chunk.choose(z, f.marks, t);
    for (int64_t i = 0; i < 2 * kTokens * N; i++) store(sums_b + i * KINFOLK_LANES, Lane{});
    for (int64_t d = from; d < until; d += KINFOLK_LANES) {
      const float* kept = f.kept + (t / kTokens * z.channels + d) * N;
      float *back = grad_state + (d - from) * N, *by_rate = grad_rate + (d - from) * N;
      columns_of(N, f.a + d * N, kLog2OfE, rates);
      for (int64_t n = 0; n < N; n++) store(start + n * KINFOLK_LANES, load(kept + n * KINFOLK_LANES));
      read_chunk(z, f, d, chunk, true);
      read_gradients(s, z, d, chunk);
      const auto group = [&](auto size, int64_t n) {
        constexpr int G = decltype(size)::value;
        const int64_t at = n * KINFOLK_LANES;
        forward_group<G, zoh, true>(chunk, f.b, f.c, n, rates + at, start + at, states, decays);
        backward_group<G, zoh>(chunk, f.b, f.c, n, rates + at, back + at, by_rate + at, states, decays,
                               sums_b + at * kTokens, sums_c + at * kTokens);
      };
      int64_t n = 0;
      for (; n + 4 <= N; n += 4) group(std::integral_constant<int, 4>{}, n);
      for (; n < N; n++) group(std::integral_constant<int, 1>{}, n);
      if (chunk.count < kTokens) {
        for (int64_t i = t; i < t + kTokens && i < z.tokens; i++) {
          for (float* g : {s.grad_x, s.grad_delta, s.grad_z}) {
            if (g) store(g + i * z.channels + d, Lane{});
          }
        }
      }
      write_gradients<zoh>(s, z, d, chunk);
    }
    for (int64_t i = 0; i < chunk.count; i++) {
      for (int64_t n = 0; n < N; n++) {
        s.grad_b[chunk.at[i] * N + n] = sum_of(load(sums_b + (n * kTokens + i) * KINFOLK_LANES));
        s.grad_c[chunk.at[i] * N + n] = sum_of(load(sums_c + (n * kTokens + i) * KINFOLK_LANES));
      }
    }
  }
  for (int64_t d = from; d < until; d += KINFOLK_LANES) {
    rows_of(N, grad_state + (d - from) * N, s.grad_state + d * N);
    for (int64_t n = 0; n < N; n++) {
      for (int64_t i = 0; i < KINFOLK_LANES; i++) {
        s.grad_a[(d + i) * N + n] += grad_rate[(d - from) * N + n * KINFOLK_LANES + i];
      }
    }
  }
}

void backward(const SelectiveSizes& z, const SelectiveBackward& s, int64_t from, int64_t until, float* scratch) {
  if (z.zoh) {
    backward_channels<true>(z, s, from, until, scratch);
  } else {
    backward_channels<false>(z, s, from, until, scratch);
  }
}
