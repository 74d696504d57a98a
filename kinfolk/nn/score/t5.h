// The bucketed relative bias of T5 (Raffel et al. 2020).
#pragma once
#include "kinfolk/nn/score/by_distance.h"

namespace kinfolk {

/// The bucket of key minus query, -distance, int64: half of the buckets hold one offset each, the others grow with the
/// logarithm up to `farthest`, beyond which all share the last. Where the future is seen, the second half of all
/// buckets is for it. The edges are those of exact arithmetic, and of the published float32 code.
Tensor t5_buckets(const Tensor& distance, int64_t buckets, int64_t farthest, bool both_ways);

/// score_ij += table[bucket(j - i), h]. T5 does not scale its dot products: say `scale = 1.0` in the branch, and
/// `share = "name"` for its one table of all layers. Parameter: table [buckets, H].
struct T5 : ByDistance {
  struct Options {
    int64_t buckets = 32, farthest = 128;
    template <class V>
    void fields(V&& visit) {
      visit("buckets", buckets, "biases a head; where the pattern sees the future, half of them are for it",
            at_least(4));
      visit("farthest", farthest, "distances from it on share a bucket", at_least(2));
    }
  };
  T5(const Options& options, const Context& context);
  Tensor table(const Tensor& distance) const override;
  Tensor biases;

 private:
  Options options_;
  bool both_ways_;
};

}  // namespace kinfolk
