// Attention among tokens that k-means puts together, and in a window beside it: the Routing Transformer's.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/mixers/group_cache.h"
#include "kinfolk/nn/reads_past.h"
#include "kinfolk/ops/attend_groups.h"

namespace kinfolk {

/// Routing attention (Roy et al. 2021) in heads `local` .. H - 1, attention in a window in the others. q and k are
/// layer-normalised without affine. choice "top", the published one: each of K centroids mu of a head takes the w
/// queries and the w keys of largest mu . x of the whole sequence; inside, softmax(q . k/sqrt(d)), causal: j <= i; what
/// several centroids read for a token is summed or averaged, a token of none reads 0. Later tokens decide which earlier
/// ones a centroid takes, so that a causal model of it is causal in its values alone. choice "nearest": each token
/// belongs to its nearest centroid (largest mu . x) and meets those of it in its chunk of w and the one before, chunks
/// counted within the centroid: causal without exception, and streaming. Its state keeps all keys of the routing heads
/// (mixers/group_cache, part "routing") and those in the window (memory/cache, part "local").
/// Causal models and "nearest" share queries and keys, k = q. Every document of a lane is a sequence of its own.
/// Centroids follow the tokens in training alone, after the optimiser step: update "sum", the article's,
/// mu' = decay mu + (1 - decay)/2 (sum of q assigned to it + sum of k), or "mean", of the means of those, by which
/// centroids keep the size of tokens (none assigned: mu stays).
/// Submodules: q, v, out (Linear [D, D], rows head-major), k of the heads with keys of their own; buffer centroids
/// [H - local, K, d].
struct RoutingAttention : Branch, ReadsPast {
  struct Options {
    int64_t heads = 0, local = -1, clusters = 0, top = 0, window = 128;
    std::string combine = "mean", choice = "top", update = "sum";
    double decay = 0.999;
    bool causal = true, bias = false;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: as the size says", at_least(0));
      visit("local", local, "heads that look into a window instead; -1: half of them", at_least(-1));
      visit("clusters", clusters, "centroids K of a head; 0: the root of the training length", at_least(0));
      visit("top", top, "tokens w that a centroid takes, or of a chunk; 0: the tokens over K", at_least(0));
      visit("window", window, "keys of the local heads, the own position included", at_least(1));
      visit("combine", combine, "what several centroids read for a token", one_of({"mean", "sum"}));
      visit("choice", choice, "centroids take tokens, or tokens centroids", one_of({"top", "nearest"}));
      visit("update", update, "what centroids move by: sums of their tokens, or means", one_of({"sum", "mean"}));
      visit("decay", decay, "of the moving averages that centroids are", between(0, 1));
      visit("causal", causal, "a token reads no later one");
      visit("bias", bias, "biases of the projections");
    }
  };
  RoutingAttention(const Options& options, const Context& context);

  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  bool reads_past_alone() const override { return options_.causal && !traits().causal; }
  StateKnob state_knob() const override;
  std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest) const override;
  int64_t most_bytes(int64_t batch, at::TensorOptions like, int64_t newest) const override;

  /// Of the routing heads: queries, keys (undefined: those are the queries) and values [B, heads, L, d], before their
  /// norm.
  Tensor read(const Tensor& queries, const Tensor& keys, const Tensor& values, Pass& pass, State* state = nullptr);

  std::shared_ptr<Linear> q, k, v, out;
  Tensor centroids;

 private:
  Tensor read_near(const Tensor& queries, const Tensor& keys, const Tensor& values, Pass& pass, State* state);
  void learn(const Tensor& queries, const Tensor& keys, Pass& pass) const;
  bool shared() const { return options_.causal || options_.choice == "nearest"; }
  bool nearest() const { return options_.choice == "nearest"; }

  Options options_;
  int64_t heads_, width_, local_, context_;
  std::shared_ptr<const Pattern> near_;
  std::shared_ptr<Cache> window_;
  GroupCache cache_;
};

}  // namespace kinfolk
