// LSTM as a mixer: the recurrent network that the family is measured against.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// The general recurrence h_t = A(h_{t-1}) + B(x_t), y_t = C(h_t) with gates: see ops/lstm_loop.h for the equations
/// (Hochreiter and Schmidhuber 1997; Gers et al. 2000). y = h, or W_out h when the hidden width N differs from D.
/// Parameters as torch has them: weight_ih [4 N, D], weight_hh [4 N, N], bias_ih, bias_hh [4 N], row blocks input,
/// forget, candidate, output; they start normal with deviation 1/sqrt(3 N), the biases at 0 and those of the forget
/// gate at 1 (bias_ih). Submodule out (Linear [D, N]) when N != D. State: hidden, cell [B, N].
class Lstm : public Branch {
 public:
  struct Options {
    int64_t hidden = 0;
    template <class V>
    void fields(V&& visit) {
      visit("hidden", hidden, "hidden width N; 0: the model width", at_least(0));
    }
  };
  static constexpr auto kHidden = "hidden";
  static constexpr auto kCell = "cell";

  Lstm(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"hidden"}; }

  Tensor weight_ih, weight_hh, bias_ih, bias_hh;

 private:
  int64_t hidden_;
  std::shared_ptr<Linear> out_;
};

}  // namespace kinfolk
