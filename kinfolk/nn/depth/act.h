// Adaptive computation time (Graves 2016): how often a position is updated, and how its states are weighed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kinfolk {
using at::Tensor;

struct ActOptions {
  double eps = 0.01;            ///< a position halts when its probabilities add up to 1 - eps
  std::string form = "graves";  ///< "graves" or "reference"
  bool strict = false;          ///< halt at a sum > 1 - eps instead of >=
};

/// The weighing rule, step by step. With p_n the halting probability of step n and at most S steps:
///   N = first n with p_1 + .. + p_n >= 1 - eps, else S;   R = 1 - sum_(n<N) p_n;   ponder = N + R
///   weights w_n = p_n for n < N, w_N = R, 0 afterwards
///   "graves":    y = sum_n w_n s_n
///   "reference": y_n = w_n s_n + (1 - w_n) y_(n-1), y_0 = initial (the code of the Universal Transformer, Dehghani et
///                al. 2019); a position cut at S without crossing keeps the weight p_S and the remainder 0.
/// N is a constant in the gradient, R is not. Positions are all axes but the last of a state.
class Act {
 public:
  /// initial [..., D]: y_0 of the reference form; also tells type and sizes.
  Act(const ActOptions& options, const Tensor& initial);
  /// The state after the next step and the probability [...] of halting there; `last`: no step follows.
  void add(const Tensor& state, const Tensor& probability, bool last);

  const Tensor& running() const { return running_; }               ///< bool [...]: still wants a step
  const Tensor& mean() const { return mean_; }                     ///< y [..., D]
  Tensor updates() const { return updates_; }                      ///< N, int64 [...]
  Tensor remainder() const { return remainder_; }                  ///< R [...]
  Tensor ponder() const;                                           ///< N + R [...]
  const std::vector<Tensor>& weights() const { return weights_; }  ///< w_n [...], one a step

 private:
  ActOptions options_;
  Tensor running_, mean_, updates_, remainder_, sum_;
  std::vector<Tensor> weights_;
};

}  // namespace kinfolk
