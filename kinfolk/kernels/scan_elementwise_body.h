// The elementwise recurrence row by row, so that memory is read in order, with the state in cache; included once for
// each instruction set, after tile_body.h. The last channels, fewer than a vector, go one by one.

void forward(const ElementForward& s, int64_t from, int64_t until) {
  for (int64_t t = 0; t < s.tokens; t++) {
    const float *x = s.x.data + t * s.x.step, *a = s.decay.data + t * s.decay.step;
    float* out = s.out.data + t * s.out.step;
    int64_t c = from;
    for (; c + KINFOLK_LANES <= until; c += KINFOLK_LANES) {
      const Lane h = load(a + c) * load(s.state + c) + load(x + c);
      store(s.state + c, h);
      store(out + c, h);
    }
    for (; c < until; c++) out[c] = s.state[c] = a[c] * s.state[c] + x[c];
  }
}

/// dx_t = g_t = do_t + a_(t+1) g_(t+1), da_t = g_t h_(t-1)
void backward(const ElementBackward& s, int64_t from, int64_t until) {
  for (int64_t t = s.tokens - 1; t >= 0; t--) {
    const float *a = s.decay.data + t * s.decay.step, *go = s.grad_out.data + t * s.grad_out.step,
                *before = t > 0 ? s.out.data + (t - 1) * s.out.step : s.state;
    float *gx = s.grad_x.data + t * s.grad_x.step, *ga = s.grad_decay.data + t * s.grad_decay.step;
    int64_t c = from;
    for (; c + KINFOLK_LANES <= until; c += KINFOLK_LANES) {
      const Lane g = load(go + c) + load(s.grad_state + c);
      store(gx + c, g);
      store(ga + c, g * load(before + c));
      store(s.grad_state + c, g * load(a + c));
    }
    for (; c < until; c++) {
      const float g = go[c] + s.grad_state[c];
      gx[c] = g, ga[c] = g * before[c], s.grad_state[c] = g * a[c];
    }
  }
}
