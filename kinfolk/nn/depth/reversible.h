// Reversible layers: what backward needs is computed anew from the outputs, so that no layer keeps anything.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinfolk/core/options.h"
#include "kinfolk/nn/depth/once.h"
#include "kinfolk/nn/layer.h"

namespace kinfolk {

/// Two streams of the model's width, both x at the start. The branches of all layers, in order, F_1 .. F_N, each norm
/// before its branch being a part of it, read one stream and add to the other in turn:
///   h_n = h_(n-2) + F_n(h_(n-1)),  h_(-1) = h_0 = x,  so that  h_(n-2) = h_n - F_n(h_(n-1)).
/// A layer of two branches is the article's  y1 = x1 + F(x2), y2 = x2 + G(y1);  one of another number goes on where the
/// layer before it stopped. The result is the mean of h_(N-1) and h_N, or their sum. (Gomez et al. 2017, RevNet; Kitaev
/// et al. 2020, Reformer, section 3; the article does not say how its streams end: its code joins them and projects.)
///
/// Backward goes from h_(N-1) and h_N down: it runs F_n once more with the same draws and from the same state, so that
/// activations in memory are those of one branch, whatever N; gradient checkpointing has nothing to add to it. Streams
/// are doubles, and what is added to them is rounded to multiples of 2^-32, so that up to 2^21 sums and differences are
/// exact and a branch reads the very numbers that it read before: its buckets, codes and masks are the same, however
/// many layers lie above. (A model in double rounds at its own last bit instead.) States, auxiliary losses, updates and
/// traces are those of the first run, losses and states with their gradients. Refused: a norm after the sum, and any
/// residual but `add`, which the subtraction does not undo.
class Reversible : public Once {
 public:
  struct Options {
    std::string join = "mean";
    std::string activations = "recomputed";
    template <class Visit>
    void fields(Visit&& visit) {
      visit("join", join, "how the two streams become the result", one_of({"mean", "sum"}));
      visit("activations", activations, "recomputed in backward, or kept: the same numbers by ordinary gradients",
            one_of({"recomputed", "kept"}));
    }
  };
  Reversible(const Options& options, const Context& context) : Once({}, context), options_(options) {}
  State start(const Layers& layers, int64_t batch, at::TensorOptions like) const override;
  Tensor run(Tensor x, const Layers& layers, const ReadOut& read_out, Pass& pass, State* state) override;

  using Streams = std::pair<Tensor, Tensor>;  ///< h_(n-1) and h_n, each [B, L, D]
  /// h_(N-1) and h_N, double, from h_(-1) and h_0 in the type of the model.
  Streams forward(Streams streams, const Layers& layers, Pass& pass, State* state) const;
  /// h_(-1) and h_0, double, from h_(N-1) and h_N, for layers of this type, without a state; no branch may draw at
  /// random.
  Streams inverse(Streams streams, const Layers& layers, Pass& pass, at::ScalarType type) const;

 private:
  Options options_;
};

}  // namespace kinfolk
