// Attention whose keys and values are projected along the length: Linformer (Wang et al. 2020).
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/length/projection.h"
#include "kinfolk/nn/linear.h"

namespace kinfolk {

/// y = concat_h(softmax(q_h (E k_h)^T / sqrt(d)) (F v_h)) W_out, q, k, v = x W_q, x W_k, x W_v; E and F reduce the
/// length n to k slots, so that time and memory are O(n k) (Wang et al. 2020, equation 7).
///
/// Sharing, as the article names it: headwise by the projection's own `per_head = false`; key-value by
/// `share_kv = true`, F being E (keys and values stay apart); layerwise by `share = "name"` in `project`, one instance
/// in all layers and, as in the article, for keys and values. The rank stands in the projection, layer by layer.
///
/// Rows are counted without padding: row j is the j-th valid token of its lane, and padding is no part of any slot. A
/// document of a batch's "segment" has slots of its own rows alone. It is no causal member: a slot is a sum over all
/// rows, those after a query too, and no mask over slots takes them out again; so it carries no state either.
/// Submodules: q, k, v, out (Linear [D, D], rows head-major), e and f (LengthProjection; f is e where they are shared).
class Linformer : public Branch {
 public:
  struct Options {
    int64_t heads = 0;
    Spec project = "linear", project_values;
    bool share_kv = false, causal = false, bias = false;
    double dropout = -1;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: as the size says", at_least(0));
      visit("project", project, "how the length is reduced");
      visit("project_values", project_values, "the same of the values; none: as project, with parameters of its own");
      visit("share_kv", share_kv, "one projection for keys and values (key-value sharing)");
      visit("causal", causal, "refused: a projected key holds tokens after the query too");
      visit("bias", bias, "the four projections of channels have one");
      visit("dropout", dropout, "of the attention weights; -1: as the size says", between(-1, 0.95));
    }
  };
  Linformer(const Options& options, const Context& context);
  Traits traits() const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;

  /// softmax(q (E k)^T / sqrt(d)) (F v) of q [B, H, L, d] and k, v [B, H, n, d], row j in column j; seen bool [B, n] or
  /// undefined: all.  [B, H, L, d]
  Tensor read(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& seen = {}) const;

  std::shared_ptr<Linear> q, k, v, out;
  std::shared_ptr<LengthProjection> e, f;

 private:
  /// Slots of keys and of values.
  struct Met {
    LengthSlots k, v;
  };
  Met slots_of(const Tensor& x, const Tensor& seen) const;
  Tensor meet(const Tensor& q, const Tensor& document, const std::vector<Met>& met, const Tensor& q_at, double dropout,
              uint64_t seed) const;
  bool early() const;  ///< the length is projected before the channels
  int64_t heads_, width_;
  double dropout_;
};

}  // namespace kinfolk
