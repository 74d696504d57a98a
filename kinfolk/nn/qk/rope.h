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
  /// The rotation of RoPE for the heads of the branch.
  Rotation rotation(const Context& context) const;
};

/// The option `trained`, tokens of the sequences that the parameters come from; 0 stands for the size's context.
int64_t trained_length(int64_t option, const Context& context);

/// Queries and keys are turned by their positions with one table of frequencies.
struct Turn : QkStep {
  explicit Turn(Rotation rotation) : rotation(std::move(rotation)) {}
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor& at) override;
  const Rotation rotation;
};

/// RoPE: the score depends on i - j alone, score_ij = (R_(i-j) q_i) . k_j / sqrt(d).
struct Rope : Turn {
  using Options = RotationOptions;
  Rope(const Options& options, const Context& context) : Turn(options.rotation(context)) {}
};

}  // namespace kinfolk
