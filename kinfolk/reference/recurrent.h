// Recurrent networks as the articles write them, one step a token, in double. For tests and readers.
#pragma once
#include <ATen/ATen.h>

#include <vector>

namespace kinfolk::reference {
using at::Tensor;

struct Ran {
  Tensor y, h, c;
};

/// h_t = f_A(h_{t-1}) + f_B(x_t), y_t = f_C(h_t) with f(x) = tanh(W x + b): the general form of a recurrent network.
inline Ran rnn_general(const Tensor& x, Tensor h, const Tensor& w_a, const Tensor& b_a, const Tensor& w_b,
                       const Tensor& b_b, const Tensor& w_c, const Tensor& b_c) {
  std::vector<Tensor> y;
  for (int64_t t = 0; t < x.size(1); t++) {
    h = at::tanh(at::linear(h, w_a, b_a)) + at::tanh(at::linear(x.select(1, t), w_b, b_b));
    y.push_back(at::tanh(at::linear(h, w_c, b_c)));
  }
  return {at::stack(y, 1), h, {}};
}

/// h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh)   (Elman 1990)
inline Ran rnn_tanh(const Tensor& x, Tensor h, const Tensor& w_ih, const Tensor& w_hh, const Tensor& b_ih,
                    const Tensor& b_hh) {
  std::vector<Tensor> y;
  for (int64_t t = 0; t < x.size(1); t++) {
    h = at::tanh(at::linear(x.select(1, t), w_ih, b_ih) + at::linear(h, w_hh, b_hh));
    y.push_back(h);
  }
  return {at::stack(y, 1), h, {}};
}

/// i, f, g, o = rows of W_ih x_t + b_ih + W_hh h_{t-1} + b_hh; c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g);
/// h_t = sigmoid(o) tanh(c_t)   (Hochreiter and Schmidhuber 1997; forget gate of Gers et al. 2000)
inline Ran lstm(const Tensor& x, Tensor h, Tensor c, const Tensor& w_ih, const Tensor& w_hh, const Tensor& b_ih,
                const Tensor& b_hh) {
  std::vector<Tensor> y;
  for (int64_t t = 0; t < x.size(1); t++) {
    const auto gate = (at::linear(x.select(1, t), w_ih, b_ih) + at::linear(h, w_hh, b_hh)).chunk(4, -1);
    c = at::sigmoid(gate[1]) * c + at::sigmoid(gate[0]) * at::tanh(gate[2]);
    h = at::sigmoid(gate[3]) * at::tanh(c);
    y.push_back(h);
  }
  return {at::stack(y, 1), h, c};
}

/// r, z, n = rows; h_t = (1 - z) n + z h_{t-1}, n = tanh(W_n x + b + r (U_n h + b')), or with r before the product:
/// n = tanh(W_n x + b + U_n (r h) + b')   (Cho et al. 2014)
inline Ran gru(const Tensor& x, Tensor h, const Tensor& w_ih, const Tensor& w_hh, const Tensor& b_ih,
               const Tensor& b_hh, bool reset_before) {
  std::vector<Tensor> y;
  const auto w = w_hh.chunk(3, 0), b = b_hh.chunk(3, 0);
  for (int64_t t = 0; t < x.size(1); t++) {
    const auto in = at::linear(x.select(1, t), w_ih, b_ih).chunk(3, -1);
    const Tensor r = at::sigmoid(in[0] + at::linear(h, w[0], b[0]));
    const Tensor z = at::sigmoid(in[1] + at::linear(h, w[1], b[1]));
    const Tensor n = at::tanh(in[2] + (reset_before ? at::linear(r * h, w[2], b[2]) : r * at::linear(h, w[2], b[2])));
    h = (1 - z) * n + z * h;
    y.push_back(h);
  }
  return {at::stack(y, 1), h, {}};
}

}  // namespace kinfolk::reference
