// KERPLE: biases that are kernels of the distance (Chi et al. 2022).
#pragma once
#include "kinfolk/nn/score/by_distance.h"

namespace kinfolk {

/// log: score_ij -= r1 ln(1 + r2 |i - j|), r1, r2 > 0; power: score_ij -= r1 |i - j|^r2, r1 > 0, 0 < r2 < 2; one r1
/// and r2 a head. r1 = softplus(a1), r2 = softplus(a2), of the power form 2 sigmoid(a2).
/// Parameters: a1, a2 [H]. They start where short distances have ALiBi's slopes m_h: log with r1 = 1, r2 = m_h, power
/// with r1 = m_h, r2 = 1.
struct Kerple : ByDistance {
  struct Options {
    std::string form = "log";
    template <class V>
    void fields(V&& visit) {
      visit("form", form, "logarithm or power of the distance", one_of({"log", "power"}));
    }
  };
  Kerple(const Options& options, const Context& context);
  Tensor table(const Tensor& distance) const override;
  Tensor r1() const, r2() const;  ///< [H]
  Tensor a1, a2;

 private:
  bool power_;
};

}  // namespace kinfolk
