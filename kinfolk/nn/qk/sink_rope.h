// Rotary positions by place in a cache that holds the first keys and the newest ones (StreamingLLM, Xiao et al. 2023).
#pragma once
#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// RoPE whose positions are places in the cache, not in the text: of n = `first` keys and then the w = `window` newest
/// ones. Newest keys keep their distances i - j. The first ones stand right before them however far the text has gone:
/// key j < n at distance min(i, n + w - 1) - j. As bands of distance: below w both sides are turned by their positions;
/// from w on, where the pattern shows the first keys alone, the query by min(i, n + w - 1) and the key by j. So no key
/// depends on its query, and no distance is larger than n + w - 1.
struct SinkRope : QkStep {
  struct Options : RotationOptions {
    int64_t window = 256, first = 4;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("window", window, "newest keys w, the own one included", at_least(1));
      visit("first", first, "keys at the beginning of the text that stay: n", at_least(0));
    }
  };
  SinkRope(const Options& options, const Context& context);
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor& at) override;
  bool relative() const override { return false; }

 private:
  Rotation rotation_;
  int64_t window_, last_;  ///< n + w - 1, the place of every query once the cache is full
};

}  // namespace kinfolk
