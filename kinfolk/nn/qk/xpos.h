// XPOS: a rotation whose pairs also fade with distance (Sun et al. 2022).
#pragma once
#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// score_ij = sum over pairs t of zeta_t^((i-j)/S) (R_(i-j) q_i)_t . k_jt / sqrt(d), zeta_t = (t/P + gamma)/(1 + gamma)
/// over P pairs. Each side takes its share about a centre c, q_i zeta^((i-c)/S) and k_j zeta^(-(j-c)/S), which cancels.
/// One centre for a long text would overflow. So c is the start of the stretch of positions that the query stands in,
/// stretches being so long that no power passes 1e15. Keys are cached about the start of their own stretch; a query of
/// a later one shrinks those before its own, pair by pair.
/// For causal patterns: towards the future the powers grow without bound.
struct Xpos : QkStep {
  struct Options : RotationOptions {
    double gamma = 0.4, scale_base = 512;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("gamma", gamma, "zeta of the first pair is gamma/(1 + gamma)", at_least(1e-3));
      visit("scale_base", scale_base, "S, tokens over which a pair fades by its zeta", at_least(1));
    }
  };
  Xpos(const Options& options, const Context& context);
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys_for(const KeyBand& band, const Tensor& at, int64_t stage) override;
  KeyBand keys_again(const KeyBand& band, const Tensor& at, int64_t stage) override;
  Tensor stage(const Tensor& at) const override;

  /// x turned by its positions, times zeta^(sign (p - c)/S).  x [B, H, L, d]; p, centre int64 [B or 1, L]
  Tensor turned(const Tensor& x, const Tensor& p, const Tensor& centre, double sign) const;

 private:
  Rotation rotation_;
  std::vector<double> slope_;  ///< ln(zeta_t) / S
  int64_t stretch_;            ///< positions that share a centre
};

}  // namespace kinfolk
