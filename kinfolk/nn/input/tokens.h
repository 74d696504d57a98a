// Token embedding, with positions added or none.
#pragma once
#include <memory>
#include <string>

#include "kinfolk/nn/family.h"
#include "kinfolk/nn/input/positions.h"

namespace kinfolk {

/// table[token] (* sqrt(D)) + positions.  (Vaswani et al. 2017)
class Tokens : public Input {
 public:
  struct Options {
    std::string position = "none";
    bool scale = false;
    double dropout = -1;
    double base = 10000;
    std::string layout = "interleaved";
    template <class Visit>
    void fields(Visit&& visit) {
      visit("position", position, "what is added to the embedding", one_of({"none", "sinusoidal", "learned"}));
      visit("scale", scale, "multiply embeddings, drawn sqrt(D) smaller, by sqrt(D)");
      visit("dropout", dropout, "share of values dropped in training; -1: the size's", between(-1, 0.95));
      visit("base", base, "longest wavelength / 2 pi of the sines", at_least(1));
      visit("layout", layout, "columns: sine and cosine in turn, or all sines first",
            one_of({"interleaved", "halves"}));
    }
  };
  Tokens(const Options& options, const Context& context);
  Traits traits() const override;
  Tensor embed(Pass& pass) override;
  Tensor tied() const override { return table_; }

 private:
  std::string path_;
  double scale_, dropout_;
  Tensor table_;  // [V, D]
  std::shared_ptr<PositionTable> position_;
};

}  // namespace kinfolk
