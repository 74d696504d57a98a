// A bounded cache: the first keys of the text and the newest ones.
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// Attention sinks and a window (Xiao et al. 2023): a query at i sees keys j < n = `first` and j > i - w, w = `window`,
/// of those that the pattern shows; "causal & (window(w) | columns(n))" shows exactly them. Positions are counted by
/// the qk steps: `rope` counts in the text, `sink_rope` in the cache as the article does. State, one lane each,
/// allocated at the start: first_k, first_v [B, G, n, d], first_at int64 [B, n] (-1: none yet), first_document; k, v
/// [B, G, w - 1, d], at, document, newest at the right end. Keys are kept with the qk steps applied when all are final.
/// Gradients flow through the state.
struct Sinks : Memory {
  struct Options {
    int64_t window = 256, first = 4;
    template <class V>
    void fields(V&& visit) {
      visit("window", window, "newest keys w, the own one included", at_least(1));
      visit("first", first, "keys at the beginning of the text that stay: n", at_least(0));
    }
  };
  Sinks(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  Read meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) override;
  int64_t reach() const override { return options_.first + options_.window; }
  int64_t seen(int64_t position) const override { return std::min(position + 1, options_.first + options_.window); }
  std::string keeps() const override;

 private:
  Options options_;
  Heads heads_;
};

}  // namespace kinfolk
