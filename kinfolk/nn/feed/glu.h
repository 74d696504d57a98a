// Gated feed-forward.
#pragma once
#include <memory>
#include <string>

#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// (f(x W_gate^T) * x W_in^T) W_out^T, hidden width 2/3 * ratio * size.feed so that it has an mlp's parameters.
/// (Shazeer 2020, "GLU Variants Improve Transformer"; f = silu is SwiGLU)
class Glu : public Branch {
 public:
  struct Options {
    std::string activation = "silu";
    double ratio = 1;
    bool bias = false;
    double dropout = -1;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("activation", activation, "non-linearity of the gate", one_of({"silu", "gelu", "gelu_tanh", "relu"}));
      visit("ratio", ratio, "hidden width as a multiple of 2/3 of the size's feed", between(0.001, 1000));
      visit("bias", bias, "add a vector after each product");
      visit("dropout", dropout, "share of hidden values dropped in training; -1: the size's", between(-1, 0.95));
    }
  };
  Glu(const Options& options, const Context& context);
  Traits traits() const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;

 private:
  std::string activation_;
  double dropout_;
  std::shared_ptr<Linear> gate_, in_, out_;
};

}  // namespace kinfolk
