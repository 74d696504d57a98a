// Predict the next token after a prefix that is seen in both directions.
#pragma once
#include "kinfolk/objective/objective.h"

namespace kinfolk {

/// Prefix language model: the first n tokens of a sequence are seen by all of it, and only the tokens after them are
/// asked for; the others can be seen. Cross-entropy as `causal` has it over the targets whose position is n or later,
/// that is at positions t >= n - 1. n is drawn for each sequence from the pass's seed: 0 for a share `none` of them,
/// else uniformly from 1 to longest * (valid tokens - 1), so that a token to ask for remains. It reaches the model as
/// the fact "prefix" (pattern `prefix(@prefix) | causal`); a batch that has this fact keeps it. In evaluation none is
/// drawn, so that bits per byte are those of plain text.
/// (Raffel et al. 2020, section 3.2; Dong et al. 2019, UniLM)
struct Prefix : Objective {
  struct Options {
    double longest = 1, none = 0;
    int64_t tile = int64_t{1} << 24;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("longest", longest, "the longest prefix, a share of the sequence", between(0, 1));
      visit("none", none, "share of the sequences without a prefix, trained as causal text", between(0, 1));
      visit("tile", tile, "scores (rows x vocabulary) held at once", at_least(1));
    }
  };
  explicit Prefix(const Options& options) : options_(options) {}
  Loss loss(Model& model, Pass& pass) override;
  /// int64 [B] of the prefixes of sequences with so many valid tokens, int64 [B].
  Tensor draw(const Tensor& valid_tokens, uint64_t seed) const;

 private:
  Options options_;
};

}  // namespace kinfolk
