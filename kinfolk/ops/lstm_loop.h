// lstm_loop: the LSTM along the tokens, with one product for all inputs and one small product a token.
#pragma once
#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// i, f, g, o = the four row blocks of W_ih x_t + b_ih + W_hh h_{t-1} + b_hh;
/// c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g), h_t = sigmoid(o) tanh(c_t)
/// (Hochreiter and Schmidhuber 1997; forget gate of Gers et al. 2000; names and row order as torch has them).
struct LstmLoop {
  Tensor x;                       ///< [B, L, I]
  Tensor weight_ih, weight_hh;    ///< [4 N, I], [4 N, N]
  Tensor bias_ih, bias_hh;        ///< [4 N]
  Tensor hidden = {}, cell = {};  ///< h, c [B, N]; undefined: zeros
  ScanLanes lanes = {};
};

struct LstmLooped {
  Tensor out;           ///< h_t [B, L, N], in the type of x
  Tensor hidden, cell;  ///< [B, N] after the last token, in float32 or wider
};

/// Differentiable once in everything. In float32 on a CPU, 16 tokens and more without gaps or borders run in oneDNN.
LstmLooped lstm_loop(const LstmLoop& run);

}  // namespace kinfolk
