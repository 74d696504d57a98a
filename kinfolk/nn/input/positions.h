// Positions that are added: a table looked up by the position of each token.
#pragma once
#include <string>

#include "kinfolk/nn/family.h"

namespace kinfolk {

/// table[position], learned (Gehring et al. 2017) or of sines (Vaswani et al. 2017). Invalid tokens get row 0.
class PositionTable : public torch::nn::Module {
 public:
  /// kind "learned": parameter "table" [context, D]; "sinusoidal": none.
  PositionTable(const Context& context, const std::string& kind, double base, const std::string& layout);
  /// Throws Error that names the limit when a position lies past a learned table. [B, L, D]
  Tensor look_up(const Pass& pass, at::TensorOptions like) const;
  int64_t limit() const { return limit_; }  ///< positions it has; 0: any

 private:
  std::string path_, layout_;
  int64_t width_, limit_ = 0;
  double base_;
  Tensor table_;
};

/// Positions added in every layer: a branch that returns table[position] and reads nothing. Give it norm = "none".
/// (Al-Rfou et al. 2018)
class PositionBranch : public Branch {
 public:
  struct Options {
    std::string position = "learned";
    double base = 10000;
    std::string layout = "interleaved";
    template <class Visit>
    void fields(Visit&& visit) {
      visit("position", position, "a table trained per position, or one of sines", one_of({"learned", "sinusoidal"}));
      visit("base", base, "longest wavelength / 2 pi of the sines", at_least(1));
      visit("layout", layout, "columns: sine and cosine in turn, or all sines first",
            one_of({"interleaved", "halves"}));
    }
  };
  PositionBranch(const Options& options, const Context& context);
  Traits traits() const override;
  double flops(int64_t, int64_t) const override { return 0; }
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override { return "table look-up (torch)"; }

 private:
  std::shared_ptr<PositionTable> position_;
};

}  // namespace kinfolk
