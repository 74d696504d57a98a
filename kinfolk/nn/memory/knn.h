// The memory of the Memorizing Transformer (Wu et al. 2022), with segments that are counted in tokens, not in calls.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/ops/attend_nearest.h"

namespace kinfolk {

/// Segments begin at the multiples of N = `segment` in each lane's own count of tokens. A query at i in the segment
/// that begins at s reads twice, each with a softmax of its own:
///   local   keys in [s - M, i], M = `local`, through the branch's steps, pattern and scores;
///   memory  of the C = `memory` newest keys before s - M, the `neighbours` with the largest q . k, no positions.
///   out = g memory + (1 - g) local, g = sigmoid(gate_h); the local read alone while the memory holds nothing.
/// scale "head": the scores are q . k times the branch's scale. scale "learned": q and k are divided by their lengths,
/// scores are exp(log_scale_h) q . k, in both reads; keys made by older weights then stay comparable.
/// Keys and values are kept as they were made; gradients stop at those before s. A new document clears the memory.
/// search "buckets": keys are sorted into buckets by k-means (knn_buckets.h), a query meets those of its `probes` best.
/// State, all of it allocated at the start: k, v [B, G, M + N - 1, d] before the QkSteps, at, document as in Cache;
/// memory_k, memory_v [B, G, C, d], position p at slot p mod C; begin int64 [B, 1], where the document began; entered
/// int64 [B, 1], keys before it have entered; with buckets code int32 [B, G, C], centre [B, G, K, d], fitted [B, 1].
/// A call writes into the memory where nobody else holds it, else into a copy.
/// Parameters: gate [H], log_scale [H] (scale "learned").
struct Knn : Memory {
  struct Options {
    int64_t segment = 128, local = 128, memory = 8192, neighbours = 32, buckets = 0, probes = 8;
    std::string scale = "learned", search = "exact";
    double gate = 0;
    template <class V>
    void fields(V&& visit) {
      visit("segment", segment, "tokens of a segment N", at_least(1));
      visit("local", local, "keys before the segment that the local read sees: M", at_least(0));
      visit("memory", memory, "keys that the memory holds: C", at_least(1));
      visit("neighbours", neighbours, "keys of the memory that a query meets", at_least(1));
      visit("scale", scale, "of the scores: the branch's, or learned with queries and keys of length one",
            one_of({"head", "learned"}));
      visit("search", search, "of the neighbours: over all keys, or in the buckets that promise most",
            one_of({"exact", "buckets"}));
      visit("buckets", buckets, "of search buckets: how many; 0: sqrt(C)", at_least(0));
      visit("probes", probes, "of search buckets: how many a query looks into", at_least(1));
      visit("gate", gate, "initial value of the gate, before the sigmoid", between(-30, 30));
    }
  };
  Knn(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  Read meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) override;
  int64_t reach() const override;
  int64_t seen(int64_t position) const override;
  double flops(int64_t length, int64_t from) const override;
  std::string keeps() const override;
  std::string explain() const override;

  Tensor gate, log_scale;

 private:
  struct Columns;
  State start_with(int64_t batch, at::TensorOptions like, int64_t slots) const;
  Read read_local(const Columns& all, const Tensor& q, const Eyes& eyes, const Pass& pass) const;
  Tensor read_memory(const Columns& all, const Tensor& q, State& state, Tensor& met) const;
  void enter(const Columns& all, State& state, int64_t lane, int64_t end, int64_t begin) const;

  Options options_;
  Heads heads_;
  int64_t capacity_, buckets_;
};

}  // namespace kinfolk
