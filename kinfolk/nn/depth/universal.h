// One group of layers, applied again and again: the Universal Transformer (Dehghani et al. 2019).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/core/options.h"
#include "kinfolk/nn/depth/act.h"
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/layer.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// Step t = 1 .. steps:  u = h + PE(i, t);  p = sigmoid(u . w_p + b_p);  h = layers(h, u)
///   PE(i, t) = sinusoid(i) + sinusoid(t), i the position. signal "stream" lets h = u (the published code); "branch"
///   adds PE only to what the first branch reads (the article's equations); "none" leaves it out.
/// halting "act": each position stops by adaptive computation time; it then keeps its last state, which later steps go
/// on to see as a key, and y is the weighed mean of its states. The mean of N + R over valid tokens is the loss
/// "ponder". halting "none": all take `steps` steps, and y = h. A state holds one part a step, "step.T", with that of
/// each layer, "layer.I". With a state every step is run for every token, so that its keys exist at each step for
/// tokens to come; without one, steps end when all have halted. Trace "updates": int64 [B, L], the steps each token
/// took.
class Universal : public Depth {
 public:
  struct Options {
    int64_t steps = 0;
    std::string halting = "act";
    std::string signal = "stream";
    std::string layout = "interleaved";
    double base = 10000.0;
    double eps = 0.01;
    std::string form = "graves";
    bool strict = false;
    double bias = 1.0;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("steps", steps, "most steps of a token; 0: as many as the size has layers", at_least(0));
      visit("halting", halting, "act: each token by adaptive computation time; none: all take every step",
            one_of({"act", "none"}));
      visit("signal", signal, "where the time-and-position signal goes: stream, branch (the first one only), none",
            one_of({"stream", "branch", "none"}));
      visit("layout", layout, "order of the signal's sines and cosines", one_of({"interleaved", "halves"}));
      visit("base", base, "base of the signal's wavelengths", at_least(1));
      visit("eps", eps, "a token halts when its probabilities add up to 1 - eps", between(0, 0.5));
      visit("form", form,
            "weighing of the states: graves (weighted sum) or reference (interpolation of the first code)",
            one_of({"graves", "reference"}));
      visit("strict", strict, "halt at a sum above 1 - eps, not at one equal to it");
      visit("bias", bias, "b_p at the start: larger halts earlier");
    }
  };

  Universal(const Options& options, const Context& context);
  Traits traits() const override;
  State start(const std::vector<std::shared_ptr<Layer>>& layers, int64_t batch, at::TensorOptions like) const override;
  double flops(const std::vector<std::shared_ptr<Layer>>& layers, int64_t length, int64_t from) const override;
  Tensor run(Tensor x, const std::vector<std::shared_ptr<Layer>>& layers, const ReadOut& read_out, Pass& pass,
             State* state) override;

  /// PE(i, t) of positions [...] at step t (from 1), [..., width].
  Tensor signal(const Tensor& position, int64_t step, int64_t width, at::TensorOptions like) const;

 private:
  Options options_;
  int64_t steps_;
  std::shared_ptr<Linear> halt_;  // null: halting "none"
};

}  // namespace kinfolk
