// Every layer once, in order.
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// h^n = layer_n(h^(n-1)), n = 1..N.
struct Once : Depth {
  struct Options {
    template <class Visit>
    void fields(Visit&&) {}
  };
  using Layers = std::vector<std::shared_ptr<Layer>>;
  Once(const Options&, const Context&) {}
  Traits traits() const override;
  State start(const Layers& layers, int64_t batch, at::TensorOptions like) const override;
  double flops(const Layers& layers, int64_t length, int64_t from) const override;
  Tensor run(Tensor x, const Layers& layers, const ReadOut& read_out, Pass& pass, State* state) override;
};

}  // namespace kinfolk
