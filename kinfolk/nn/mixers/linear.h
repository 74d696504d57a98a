// Linear attention: a sum of outer products as the memory, read by the query.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/norm.h"

namespace kinfolk {

/// S_t = S_{t-1} + phi(k_t) v_t^T, z_t = z_{t-1} + phi(k_t); o_t = a phi(q_t) S_t / (a phi(q_t).z_t + eps), or without
/// the division (Katharopoulos et al. 2020).
/// Submodules: q, k, v, out (Linear [D, D], rows head-major), norm. State: state [B, H, K, V], sum [B, H, K].
class LinearAttention : public Branch {
 public:
  struct Options {
    int64_t heads = 0;
    std::string feature = "elu1";
    bool normalise = true;
    double eps = 1e-6;
    double scale = 1.0;
    bool bias = false;
    std::string output_norm = "none";
    int64_t chunk = 64;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: those of the size", at_least(0));
      visit("feature", feature, "feature map of queries and keys", one_of({"elu1", "identity"}));
      visit("normalise", normalise, "divide by the sum of the weights; needs a positive feature map");
      visit("eps", eps, "added to the sum of the weights", at_least(1e-12));
      visit("scale", scale, "of the queries; 0: 1/sqrt(head width)", at_least(0));
      visit("bias", bias, "biases of the projections");
      visit("output_norm", output_norm, "norm of each head's output", one_of({"none", "rms", "layer"}));
      visit("chunk", chunk, "tokens computed at once between two states", at_least(1));
    }
  };
  static constexpr auto kState = "state";
  static constexpr auto kSum = "sum";

  LinearAttention(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"heads", true}; }

 private:
  Options options_;
  int64_t heads_, width_;
  std::shared_ptr<Linear> q_, k_, v_, out_;
  std::shared_ptr<Norm> norm_;
};

}  // namespace kinfolk
