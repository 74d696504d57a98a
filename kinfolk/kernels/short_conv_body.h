// The short convolution, vectors of channels; included once for each instruction set, after tile_body.h. The last
// channels, fewer than a vector, go by way of a padded copy.
#include "kinfolk/kernels/lane_math_body.h"

/// A vector of channels from `p` on: all of it, or the first `count` and zeros.
struct Whole {
  static Lane read(const float* p, int64_t) { return load(p); }
  static void write(float* p, Lane v, int64_t) { store(p, v); }
};
struct Some {
  static Lane read(const float* p, int64_t count) {
    float padded[KINFOLK_LANES] = {};
    for (int64_t i = 0; i < count; i++) padded[i] = p[i];
    return load(padded);
  }
  static void write(float* p, Lane v, int64_t count) {
    float padded[KINFOLK_LANES];
    store(padded, v);
    for (int64_t i = 0; i < count; i++) p[i] = padded[i];
  }
};

/// The input of a token; of those before the first, from the state.
KINFOLK_INLINE const float* input_of(const ShortConvSizes& z, const ShortConvForward& s, int64_t token) {
  return token >= 0 ? s.x + token * s.row : s.before + (token + z.taps - 1) * z.channels;
}

/// The sum at a token, of channels from c on; T taps, or 0: those of the sizes.
template <class Part, int T>
KINFOLK_INLINE Lane sum_at(const ShortConvSizes& z, const ShortConvForward& s, int64_t t, int64_t c, int64_t some) {
  const int64_t W = T > 0 ? T : z.taps;
  Lane sum = Part::read(s.bias + c, some);
  KINFOLK_UNROLL
  for (int64_t j = 0; j < W; j++) {
    sum = sum + Part::read(s.weight + (W - 1 - j) * z.channels + c, some) * Part::read(input_of(z, s, t - j) + c, some);
  }
  return sum;
}

template <class Part, int T>
KINFOLK_INLINE void forward_at(const ShortConvSizes& z, const ShortConvForward& s, int64_t t, int64_t c, int64_t some) {
  Lane sum = sum_at<Part, T>(z, s, t, c, some);
  if (z.silu) sum = sum * sigmoid(sum);
  Part::write(s.out + t * z.channels + c, sum, some);
}

template <int T>
KINFOLK_NOINLINE void forward_taps(const ShortConvSizes& z, const ShortConvForward& s, int64_t from, int64_t until) {
  for (int64_t t = 0; t < z.tokens; t++) {
    int64_t c = from;
    for (; c + KINFOLK_LANES <= until; c += KINFOLK_LANES) forward_at<Whole, T>(z, s, t, c, KINFOLK_LANES);
    if (c < until) forward_at<Some, T>(z, s, t, c, until - c);
  }
}

void forward(const ShortConvSizes& z, const ShortConvForward& s, int64_t from, int64_t until) {
  if (z.taps == 4) {
    forward_taps<4>(z, s, from, until);
  } else {
    forward_taps<0>(z, s, from, until);
  }
}

template <int T>
KINFOLK_INLINE void step_taps(const ShortConvStep& s) {
  const int64_t W = T > 0 ? T : s.taps;
  for (int64_t c = 0; c < s.channels; c++) {
    const float* weight = s.weight + c * W;
    float *state = s.state + c * (W - 1), sum = s.bias ? s.bias[c] : 0;
    for (int64_t j = 0; j + 1 < W; j++) sum += weight[j] * state[j];
    sum += weight[W - 1] * s.x[c];
    for (int64_t j = 0; j + 2 < W; j++) state[j] = state[j + 1];
    if (W > 1) state[W - 2] = s.x[c];
    s.out[c] = sum;
  }
  if (!s.silu) return;
  int64_t c = 0;
  for (; c + KINFOLK_LANES <= s.channels; c += KINFOLK_LANES) {
    const Lane sum = load(s.out + c);
    store(s.out + c, sum * sigmoid(sum));
  }
  if (c < s.channels) {
    const Lane sum = Some::read(s.out + c, s.channels - c);
    Some::write(s.out + c, sum * sigmoid(sum), s.channels - c);
  }
}

void run_step(const ShortConvStep& s) { s.taps == 4 ? step_taps<4>(s) : step_taps<0>(s); }

/// The gradient of the sum at token t into `later` [W, width], token t in row t mod W, and into weight and bias; then
/// that of the input at token t, which the sums of t .. t + W - 1 have read.
template <class Part, int T>
KINFOLK_INLINE void backward_at(const ShortConvSizes& z, const ShortConvBackward& s, int64_t t, int64_t c, int64_t some,
                                float* later, int64_t width) {
  const int64_t W = T > 0 ? T : z.taps, E = z.channels;
  const ShortConvForward& f = s.given;
  Lane g{};
  if (t >= 0) {
    g = Part::read(s.grad_out + t * E + c, some);
    if (z.silu) {
      const Lane sum = sum_at<Part, T>(z, f, t, c, some), sigma = sigmoid(sum);
      g = g * sigma * (all(1.f) + sum * (all(1.f) - sigma));
    }
    KINFOLK_UNROLL
    for (int64_t j = 0; j < W; j++) {
      float* to = s.grad_weight + (W - 1 - j) * E + c;
      Part::write(to, Part::read(to, some) + g * Part::read(input_of(z, f, t - j) + c, some), some);
    }
    Part::write(s.grad_bias + c, Part::read(s.grad_bias + c, some) + g, some);
  }
  Part::write(later + (t + W) % W * width, g, some);
  Lane by_x{};
  KINFOLK_UNROLL
  for (int64_t j = 0; j < W; j++) {  // rows of tokens beyond the last hold zeros
    by_x = by_x + Part::read(f.weight + (W - 1 - j) * E + c, some) * Part::read(later + (t + j + W) % W * width, some);
  }
  Part::write(t >= 0 ? s.grad_x + t * E + c : s.grad_before + (t + W - 1) * E + c, by_x, some);
}

template <int T>
KINFOLK_NOINLINE void backward_taps(const ShortConvSizes& z, const ShortConvBackward& s, int64_t from, int64_t until,
                                    float* scratch) {
  const int64_t width = until - from;
  for (int64_t i = 0; i < z.taps * width; i++) scratch[i] = 0;
  for (int64_t t = z.tokens - 1; t > -z.taps; t--) {
    int64_t c = from;
    for (; c + KINFOLK_LANES <= until; c += KINFOLK_LANES) {
      backward_at<Whole, T>(z, s, t, c, KINFOLK_LANES, scratch + (c - from), width);
    }
    if (c < until) backward_at<Some, T>(z, s, t, c, until - c, scratch + (c - from), width);
  }
}

void backward(const ShortConvSizes& z, const ShortConvBackward& s, int64_t from, int64_t until, float* scratch) {
  if (z.taps == 4) {
    backward_taps<4>(z, s, from, until, scratch);
  } else {
    backward_taps<0>(z, s, from, until, scratch);
  }
}
