// The distance-aware scores of DA-Transformer (Wu et al. 2021).
#pragma once
#include "kinfolk/nn/score/by_distance.h"

namespace kinfolk {

/// score_ij = relu(q_i . k_j / sqrt(d)) f(alpha |i - j|; beta), f(R; b) = (1 + e^b) / (1 + e^(b - R)), one alpha and
/// beta a head: alpha > 0 raises what is far, up to 1 + e^beta, alpha < 0 lowers it, 0 leaves distances out.
/// Parameters: alpha, beta [H].
struct Distance : Score {
  struct Options {
    template <class V>
    void fields(V&&) {}
  };
  Distance(const Options&, const Context& context);
  std::vector<Tensor> prepare(const Tensor& like, int64_t nearest, int64_t farthest) override;
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override;
  std::optional<DistanceFactor> scales_by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override;
  Tensor alpha, beta;

 private:
  Tensor factor(const Tensor& like, int64_t nearest, int64_t farthest) const;  ///< [H, distances]
};

}  // namespace kinfolk
