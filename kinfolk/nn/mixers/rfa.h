// Random feature attention, with a gate that forgets.
#pragma once
#include "kinfolk/nn/mixers/feature_attention.h"

namespace kinfolk {

/// phi(x) = [sin(w.x~), cos(w.x~)] / sqrt(M), x~ = x/|x|, w ~ N(0, deviation^2 I): o_t = phi(q_t)^T S_t / phi(q_t).z_t,
/// S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T, z_t = g_t z_{t-1} + (1 - g_t) phi(k_t), g_t = sigmoid(w_g.x_t + b_g) a
/// head; without the gate both are plain sums (Peng et al. 2021). Further submodule: gate (Linear [H, D], with bias).
class Rfa : public FeatureAttention {
 public:
  struct Options {
    int64_t heads = 0, features = 64;
    double deviation = 1;
    bool gated = true, causal = true, orthogonal = false, bias = false;
    double eps = 1e-2;
    int64_t redraw = 0, chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("features", features, "random directions M of a head, two features each", at_least(1));
      visit("deviation", deviation, "of the directions' entries, 1/sigma of the kernel", at_least(1e-3));
      visit("gated", gated, "forget by a gate of each token and head; causal only");
      visit("causal", causal, "a token sees what came before it alone");
      visit("orthogonal", orthogonal, "directions orthogonal to each other, d at a time");
      visit("bias", bias, "biases of the projections");
      visit("eps", eps, "least size of the divisor", at_least(1e-12));
      visit("redraw", redraw, "training steps after which new directions are drawn; 0: never", at_least(0));
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  Rfa(const Options& options, const Context& context);
  double flops(int64_t length, int64_t from) const override;

 private:
  static Shape shape(const Options& options, const Context& context);
  Features features(const Tensor& q, const Tensor& k, const Tensor& x, const Pass& pass) override;
  std::shared_ptr<Linear> gate_;
};

}  // namespace kinfolk
