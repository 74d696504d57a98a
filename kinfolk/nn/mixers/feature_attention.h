// What mixers over random features share: projections, directions, the scan or the whole sum, the division.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// Features of q and k by head, then read_features (mixers/feature_sums).
/// Submodules: q, k, v, out (Linear [D, D], rows head-major); buffer directions [H, M, d], saved with the weights.
/// State (causal): state and, with positive features, sum, as FeatureSums has them.
class FeatureAttention : public Branch {
 public:
  static constexpr auto kState = "state";
  static constexpr auto kSum = "sum";
  struct Shape {
    int64_t heads = 0, features = 0, columns = 0;  ///< columns F that a map of `features` directions has
    bool causal = true, positive = true, orthogonal = true, streams = true;
    double eps = 1e-6, deviation = 1;
    int64_t redraw = 0, chunk = 64;
    bool bias = false;
  };

  FeatureAttention(const Shape& shape, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"features", false}; }
  Tensor directions() const { return directions_; }

 protected:
  struct Features {
    Tensor q, k;       ///< [B, H, L, F]
    Tensor gate = {};  ///< log decay of the sums [B, H, L]; undefined: none
  };
  /// q, k [B, H, L, d] by head; x is what they were made of.
  virtual Features features(const Tensor& q, const Tensor& k, const Tensor& x, const Pass& pass) = 0;
  int64_t heads() const { return heads_; }

 private:
  void redraw(Pass& pass);
  Shape shape_;
  int64_t heads_, width_, calls_ = 0;
  std::shared_ptr<Linear> q_, k_, v_, out_;
  Tensor directions_;
};

}  // namespace kinfolk
