// Performer: softmax attention in the mean, over random features.
#pragma once
#include "kinfolk/nn/mixers/feature_attention.h"

namespace kinfolk {

/// FAVOR+ (Choromanski et al. 2021): phi "positive", exp(w.x' - |x'|^2/2) with x' = x d^(-1/4); "sin_cos",
/// exp(|x'|^2/2) [sin(w.x'), cos(w.x')], the same kernel with more noise where weights are small; or "relu", relu(w.x),
/// a kernel of its own. eps is added to each feature (the published code: 1e-4, 1e-3 for relu), or, for sin_cos, keeps
/// the divisor from zero. stabiliser "keys" is the published one; it must know all keys, so that a causal model with it
/// does not stream.
class Performer : public FeatureAttention {
 public:
  struct Options {
    int64_t heads = 0, features = 0;
    std::string feature = "positive", stabiliser = "bound";
    bool orthogonal = true, causal = true, bias = false;
    double eps = 1e-4;
    int64_t redraw = 0, chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("features", features, "random directions M of a head; 0: d ln d, rounded up to a multiple of 16",
            at_least(0));
      visit("feature", feature, "feature map", one_of({"positive", "sin_cos", "relu"}));
      visit("stabiliser", stabiliser, "what exponents of keys are lowered by: a bound on them, or their largest",
            one_of({"bound", "keys"}));
      visit("orthogonal", orthogonal, "directions orthogonal to each other, d at a time");
      visit("causal", causal, "a token sees what came before it alone");
      visit("bias", bias, "biases of the projections");
      visit("eps", eps, "added to each feature; of sin_cos: least size of the divisor", at_least(1e-12));
      visit("redraw", redraw, "training steps after which new directions are drawn; 0: never", at_least(0));
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  Performer(const Options& options, const Context& context);

 private:
  static Shape shape(const Options& options, const Context& context);
  Features features(const Tensor& q, const Tensor& k, const Tensor& x, const Pass& pass) override;
  Options options_;
};

}  // namespace kinfolk
