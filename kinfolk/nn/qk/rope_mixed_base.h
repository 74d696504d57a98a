// RoPE with a mixed base (Su Jianlin 2023, part 11).
#pragma once
#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// RoPE with f'_t = f_t exp(-a (t + 1)^b), a = ln(s) / P^b over P pairs: pair t slows down by less than the last one,
/// which slows down by s. b = 1 is the fixed form of rope_ntk, b = 0 position interpolation; the post has b = 0.625,
/// its author's code 0.75.
struct RopeMixedBase : Turn {
  struct Options : RotationOptions {
    double factor = 4, b = 0.625;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("factor", factor, "s, how many times longer than trained", at_least(1));
      visit("b", b, "1 changes the fast pairs least, 0 all pairs alike", between(0, 1));
    }
  };
  RopeMixedBase(const Options& options, const Context& context);
};

}  // namespace kinfolk
