// Position-wise feed-forward: two matrices with a non-linearity between.
#pragma once
#include <memory>
#include <string>

#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// x W_in^T -> f -> W_out^T, hidden width ratio * size.feed.  (Vaswani et al. 2017, equation 2)
class Mlp : public Branch {
 public:
  struct Options {
    std::string activation = "gelu";
    double ratio = 1;
    bool bias = true;
    double dropout = -1;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("activation", activation, "non-linearity; gelu_tanh is the approximation that GPT-2 uses",
            one_of({"gelu", "gelu_tanh", "relu", "silu"}));
      visit("ratio", ratio, "hidden width as a multiple of the size's feed", between(0.001, 1000));
      visit("bias", bias, "add a vector after each product");
      visit("dropout", dropout, "share of hidden values dropped in training; -1: the size's", between(-1, 0.95));
    }
  };
  Mlp(const Options& options, const Context& context);
  Traits traits() const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;

 private:
  std::string activation_;
  double dropout_;
  std::shared_ptr<Linear> in_, out_;
};

/// f(x) by its name in a recipe.
Tensor activate(const std::string& name, const Tensor& x);

}  // namespace kinfolk
