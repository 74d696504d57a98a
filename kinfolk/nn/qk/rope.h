// RoPE: rotary positions (Su et al. 2021).
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/qk/rotation.h"

namespace kinfolk {

/// What every rotation of queries and keys can be told.
struct RotationOptions {
  double base = 10000;
  std::string layout = "half";
  int64_t rotary = 0;
  template <class V>
  void fields(V&& visit) {
    visit("base", base, "pair t of r turns by base^(-t/r) a position", at_least(1));
    visit("layout", layout, "pairs: (t, t + rotary/2) as LLaMA, or (2t, 2t + 1) as the article",
          one_of({"half", "interleaved"}));
    visit("rotary", rotary, "dimensions that turn, the rest passes through; 0: the whole head", at_least(0));
  }
  Rotation rotation(const Context& context) const;
};

/// Queries and keys are turned by their positions, so that the score depends on i - j:
/// score_ij = (R_(i-j) q_i) . k_j / sqrt(d).
struct Rope : QkStep {
  using Options = RotationOptions;
  Rope(const Options& options, const Context& context) : rotation_(options.rotation(context)) {}
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor& at) override;

 private:
  Rotation rotation_;
};

}  // namespace kinfolk
