// Fill in hidden tokens: what members that see the whole sequence are trained for.
#pragma once
#include "kinfolk/objective/objective.h"

namespace kinfolk {

/// Masked language model: a share of the valid tokens is drawn from the pass's seed and asked for at its own place;
/// most of these are replaced by the token `mask`, some by a random token, the others stay, so that the model cannot
/// know which of the tokens that it sees are right. Cross-entropy as `causal` has it over those places; the fact
/// "target", which says next tokens, is not read. Evaluation draws in the same way, from a seed that does not change:
/// the same places each time. Its bits are those of a hidden token, not bits per byte of a text. (Devlin et al. 2019,
/// section 3.1)
struct Masked : Objective {
  struct Options {
    double share = 0.15, random = 0.1, same = 0.1;
    int64_t mask = -1;
    int64_t tile = int64_t{1} << 24;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("share", share, "share of the tokens that are asked for", between(0, 1));
      visit("random", random, "share of these that become a random token", between(0, 1));
      visit("same", same, "share of these that stay as they are", between(0, 1));
      visit("mask", mask,
            "id of the token that hides; -1: the last of the vocabulary, of bytes 255, which no UTF-8 has",
            at_least(-1));
      visit("tile", tile, "scores (rows x vocabulary) held at once", at_least(1));
    }
  };
  explicit Masked(const Options& options);
  Loss loss(Model& model, Pass& pass) override;
  const char* asked() const override { return "hidden "; }

  struct Hidden {
    Tensor tokens;  ///< int64 [B, L], what the model is given
    Tensor asked;   ///< bool [B, L]
  };
  /// valid bool [B, L]; undefined: all.
  Hidden hide(const Tensor& tokens, const Tensor& valid, int64_t vocabulary, uint64_t seed) const;

 private:
  Options options_;
};

}  // namespace kinfolk
