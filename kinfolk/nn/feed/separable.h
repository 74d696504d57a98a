// Feed-forward with separable convolutions: each token also sees a few before it.
#pragma once
#include <memory>
#include <string>

#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// sep(relu(sep(x))), sep(x)_t = P sum_(j < kernel) w_j * x_(t-j) + b: a filter a channel along the tokens, then a
/// product P over channels (Chollet 2017); the other transition function of the Universal Transformer (Dehghani et al.
/// 2019), whose published code has kernels 3 and 5. Causal: t - j counts valid tokens of the same document before t.
class Separable : public Branch {
 public:
  struct Options {
    int64_t kernel = 3;
    int64_t second_kernel = 5;
    double ratio = 1;
    bool bias = true;
    double dropout = -1;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("kernel", kernel, "tokens under the first filter, the own one included", between(1, 4096));
      visit("second_kernel", second_kernel, "tokens under the second filter; 1: only the product over channels",
            between(1, 4096));
      visit("ratio", ratio, "hidden width as a multiple of the size's feed", between(0.001, 1000));
      visit("bias", bias, "add a vector after each product");
      visit("dropout", dropout, "share of hidden values dropped in training; -1: the size's", between(-1, 0.95));
    }
  };
  Separable(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override { return "short_conv and linear, twice, relu between (torch)"; }

 private:
  Tensor filter(const Tensor& x, const Tensor& weight, const char* name, const Pass& pass, State* state) const;
  double dropout_;
  Tensor first_, second_;  // [D, kernel], [F, second kernel]; second_ undefined for kernel 1
  std::shared_ptr<Linear> in_, out_;
};

}  // namespace kinfolk
