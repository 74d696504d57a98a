// Gated attention unit: attention and feed-forward in one branch.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {

/// u, v, z = silu(x W_u), silu(x W_v), silu(x W_z); q = z * gamma_0 + beta_0, k = z * gamma_1 + beta_1, changed by the
/// `qk` steps; y = (u * (A v)) W_out, one head (Hua et al. 2022; Su Jianlin 2022). The weights A, by `form`, with s the
/// width of q and n_i the keys that query i sees:
///   relu2         relu(q k)^2 / (n_i s)
///   relu2_n       relu(q k / N)^2, N the length of the whole sequence (of the document): the published form, which
///   cannot
///                 stream
///   softmax       softmax(q k / sqrt(s))
///   softmax_plus  softmax(ln(n_i) / ln(trained) q k / sqrt(s))
/// State: keys before the steps, values and positions of what the pattern can still see, as Cache has them.
/// Submodules: u, v [e, D], z [s, D], out [D, e]; parameters gamma, beta [2, s]. It needs no feed-forward beside it.
struct Gau : Branch {
  struct Options {
    std::string form = "relu2", pattern = "causal";
    int64_t inner = 0, key_width = 128, trained = 512;
    std::vector<Spec> qk;
    template <class V>
    void fields(V&& visit) {
      visit("form", form, "the weights", one_of({"relu2", "relu2_n", "softmax", "softmax_plus"}));
      visit("pattern", pattern, "which pairs may meet, such as \"causal & window(256)\"");
      visit("inner", inner, "width e of u and v; 0: half the feed-forward width of the size, so 2 D", at_least(0));
      visit("key_width", key_width, "width s of queries and keys", at_least(1));
      visit("trained", trained, "of softmax_plus: the number of keys at which its factor is 1", at_least(2));
      visit("qk", qk, "steps on queries and keys, in order");
    }
  };
  Gau(const Options& options, const Context& context);

  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override { return memory->start(batch, like); }
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest) const override {
    return memory->truncate(state, lane, position, newest);
  }
  int64_t most_bytes(int64_t batch, at::TensorOptions like, int64_t newest) const override {
    return memory->most_bytes(batch, like, newest);
  }
  std::string keeps() const override { return memory->keeps(); }
  std::vector<std::shared_ptr<const Pattern>> patterns() const override { return {pattern_}; }

  std::shared_ptr<Linear> u, v, z, out;
  Tensor gamma, beta;
  std::vector<std::shared_ptr<QkStep>> qk;
  std::shared_ptr<Memory> memory;

 private:
  Read look(const Tensor& q, const Tensor& at, const Pass& pass, Keys keys);
  std::vector<QueryBand> query_bands(const Tensor& q, const Tensor& at, double scale);
  std::vector<KeyBand> key_bands(const Tensor& k, const Tensor& at);

  Options options_;
  std::shared_ptr<const Pattern> pattern_;
};

}  // namespace kinfolk
