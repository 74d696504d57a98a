// Columns of the state, N vectors of them at a time: what they say of k, and what is written; included once for each
// instruction set, after tile_body.h.

template <int N>
KINFOLK_NOINLINE void step_columns(const DeltaStep& s, int64_t c) {
  const int64_t K = s.keys, V = s.values;
  Lane said[N], out[N];
  KINFOLK_UNROLL
  for (int n = 0; n < N; n++) said[n] = out[n] = Lane{};
  for (int64_t r = 0; r < K; r++) {
    const Lane kr = all(s.decay * s.k[r]);
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) said[n] = said[n] + kr * load(s.state + r * V + c + n * KINFOLK_LANES);
  }
  KINFOLK_UNROLL
  for (int n = 0; n < N; n++) {
    const int64_t at = c + n * KINFOLK_LANES;
    said[n] = (s.betas ? load(s.beta + at) : all(s.beta[0])) * (load(s.v + at) - said[n]);
  }
  const Lane decay = all(s.decay);
  for (int64_t r = 0; r < K; r++) {
    const Lane kr = all(s.k[r]), qr = all(s.q[r]);
    KINFOLK_UNROLL
    for (int n = 0; n < N; n++) {
      float* at = s.state + r * V + c + n * KINFOLK_LANES;
      const Lane next = decay * load(at) + kr * said[n];
      store(at, next);
      out[n] = out[n] + qr * next;
    }
  }
  KINFOLK_UNROLL
  for (int n = 0; n < N; n++) store(s.out + c + n * KINFOLK_LANES, all(s.scale) * out[n]);
}

void run_step(const DeltaStep& s) {
  constexpr int64_t kWide = KINFOLK_COLUMNS * KINFOLK_LANES;
  int64_t c = 0;
  for (; c + kWide <= s.values; c += kWide) step_columns<KINFOLK_COLUMNS>(s, c);
  for (; c + KINFOLK_LANES <= s.values; c += KINFOLK_LANES) step_columns<1>(s, c);
  for (; c < s.values; c++) {
    float said = 0, out = 0;
    for (int64_t r = 0; r < s.keys; r++) said += s.decay * s.k[r] * s.state[r * s.values + c];
    said = s.beta[s.betas ? c : 0] * (s.v[c] - said);
    for (int64_t r = 0; r < s.keys; r++) {
      float& at = s.state[r * s.values + c];
      at = s.decay * at + s.k[r] * said;
      out += s.q[r] * at;
    }
    s.out[c] = s.scale * out;
  }
}
