// Position interpolation (Chen et al. 2023).
#pragma once
#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// RoPE with f'_t = f_t / s: positions are pressed together until `factor` times the trained length fits into it.
struct RopePi : Turn {
  struct Options : RotationOptions {
    double factor = 4;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("factor", factor, "s, how many times longer than trained", at_least(1));
    }
  };
  RopePi(const Options& options, const Context& context);
};

}  // namespace kinfolk
