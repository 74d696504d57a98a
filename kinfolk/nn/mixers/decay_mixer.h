// What mixers over scan_decay share: projections, the state, the choice of form, norm, output gate.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/norm.h"
#include "kinfolk/ops/scan_decay.h"

namespace kinfolk {

/// y = W_out (norm(o) * silu(W_swish x)), o = scan of q = a W_q x, k = W_k x, v = W_v x by head, with a gate that the
/// mixer sets from x. Norm and swish gate where the mixer has them; the norm is over the value channels of a head.
/// Submodules: q, k (Linear [H K, D]), v (Linear [H V, D]), swish (Linear [H V, D]), norm, out (Linear [D, H V]), rows
/// head-major. State: state [B, H, K, V].
class DecayMixer : public Branch {
 public:
  static constexpr auto kState = "state";
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  StateKnob state_knob() const override { return {"heads", true}; }

 protected:
  struct Shape {
    int64_t heads = 0;
    double keys = 1, values = 1;  ///< widths of all heads together, as multiples of D
    bool bias = false;
    bool swish = false;
    std::string norm = "none";
    bool affine = true;
    double eps = 1e-5;
    double scale = 0;  ///< of the queries; 0: 1/sqrt(K)
    int64_t chunk = 64;
  };
  DecayMixer(const Shape& shape, const Context& context);
  /// Sets the gate, from x, of a scan whose q, k, v are the projections; may change those too.
  virtual void prepare(DecayScan& scan, const Tensor& x, Pass& pass) = 0;
  /// What q, k, v, the swish gate and the decays are made of.
  struct Streams {
    Tensor q, k, v, swish, decay;  // [B, L, D]
  };
  virtual Streams streams(const Tensor& x, Pass& pass, State* state);
  virtual double gate_flops(int64_t /*length*/) const { return 0; }

  Shape shape_;
  int64_t heads_, keys_, values_;  // H, K, V
  std::shared_ptr<Linear> q_, k_, v_, swish_, out_;
  std::shared_ptr<Norm> norm_;
};

/// The logit whose sigmoid is retention's decay of head h, 1 - 2^(-5-h): where learned decays start.
Tensor retention_logits(int64_t heads);

}  // namespace kinfolk
