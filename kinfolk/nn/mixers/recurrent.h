// A recurrent network as a mixer, with the cell as a component.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/mixers/cell.h"
#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

struct Ran {
  Tensor h;     ///< [B, L, N] after each token; rows of invalid tokens are zero
  Tensor last;  ///< [B, N]
};
/// The cell along the tokens, one step a token. `h` undefined: zeros.
Ran run_cell(const Cell& cell, const Tensor& x, const Tensor& h, const ScanLanes& lanes);

/// h_t = A(h_{t-1}, x_t), y_t = C(h_t) with the functions of a cell, y = W_out C(h) where the widths differ.
/// Submodules: cell, and out (Linear [D, O]) if there is need. State: hidden [B, N].
class Recurrent : public Branch {
 public:
  struct Options {
    Spec cell = "gru";
    template <class V>
    void fields(V&& visit) {
      visit("cell", cell, "the step: general, tanh, gru");
    }
  };
  static constexpr auto kHidden = "hidden";

  Recurrent(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"", false, "its state is as wide as the model"}; }

 private:
  std::string kind_;
  std::shared_ptr<Cell> cell_;
  std::shared_ptr<Linear> out_;
};

}  // namespace kinfolk
