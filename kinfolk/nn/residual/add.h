// The residual sum.
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// x + branch.  (He et al. 2016)
struct Add : Residual {
  struct Options {
    template <class Visit>
    void fields(Visit&&) {}
  };
  Add(const Options&, const Context&) {}
  Tensor meet(const Tensor& x, const Tensor& branch) override { return x + branch; }
};

}  // namespace kinfolk
