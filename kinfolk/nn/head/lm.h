// Scores of the next token.
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// x W^T (+ b), W [V, D] its own or the input's table.  (Press and Wolf 2017 for the shared one)
class LanguageModel : public Head {
 public:
  struct Options {
    bool tied = true;
    bool bias = false;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("tied", tied, "share the input's embedding table");
      visit("bias", bias, "add a trained number to each token's score");
    }
  };
  LanguageModel(const Options& options, const Context& context);
  Tensor read(const Tensor& x, Pass& pass) override;
  double flops(int64_t length) const override;

 private:
  Tensor weight_, bias_;  // [V, D], [V]
};

}  // namespace kinfolk
