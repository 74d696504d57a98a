// Relative position representations (Shaw et al. 2018).
#pragma once
#include "kinfolk/nn/score/score.h"

namespace kinfolk {

/// e_ij = q_i . (k_j + w^K_c) / sqrt(d), out_i = sum_j a_ij (v_j + w^V_c), c = clip(j - i, -K, K) + K: rows below K are
/// the past. q is taken before the qk steps; both tables are shared by the heads.
/// Parameters: wk [2 clip + 1, d], wv [2 clip + 1, d]. In a causal branch the rows of the future stay unused.
struct Shaw : Score {
  struct Options {
    int64_t clip = 16;
    bool values = true;
    template <class V>
    void fields(V&& visit) {
      visit("clip", clip, "K, distances from it on share a row", at_least(1));
      visit("values", values, "a table for values as well as for keys");
    }
  };
  Shaw(const Options& options, const Context& context);
  std::vector<Tensor> prepare(const Tensor& like, int64_t nearest, int64_t farthest) override;
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override;
  std::optional<QueryTable> by_query(const Tensor& q_raw, int64_t nearest, int64_t farthest) override;
  std::optional<DistanceValues> adds_to_values() override;
  Tensor wk, wv;

 private:
  int64_t clip_, heads_;
  double scale_;
  bool causal_;
};

}  // namespace kinfolk
