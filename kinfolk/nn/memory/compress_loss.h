// What trains a compression: how much of the rows the slots tell (Rae et al. 2019, section 3.2).
#pragma once
#include <string>

#include "kinfolk/nn/family.h"

namespace kinfolk {

/// The size of each of M differences [M, ...]: "l2" its norm |d|, "square" |d|^2, "mean_square" the mean of its
/// squares. A norm of zero has the gradient zero.  [M]
Tensor size_of_difference(const Tensor& d, const std::string& measure);

/// attn(q, m) of every head without positions: softmax(scale q k^T) v over the keys that `hidden` does not hide;
/// 0 where it hides all.  q [M, H, N, d]; k, v [M, G, P, d]; hidden bool [M, 1, N or 1, P] or undefined
/// -> [M, H, N, d]
Tensor read_by_content(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& hidden, double scale);

/// g of the auto-encoding loss, a transposed convolution with as many taps as the rate: row c n + t =
/// b + W_t^T slot_n.  Parameters: weight [D, D, c] (in, out, tap), bias [D].
struct Decoder : torch::nn::Module {
  Decoder(const Context& context, int64_t rate);
  Tensor forward(const Tensor& slots) const;  ///< [M, P / c, D] -> [M, P, D]
  Tensor weight, bias;
};

}  // namespace kinfolk
