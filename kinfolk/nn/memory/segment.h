// Segment-level recurrence (Dai et al. 2019), with segments that are counted in tokens, not in calls.
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// Segments begin at the multiples of N = `segment` in each lane's own count of tokens. A query at i in the segment
/// that begins at s sees, besides what the pattern forbids,
///   reach "segment": keys in [s - M, i], M = `memory`: the published form, M + 1 to M + N keys;
///   reach "same":    keys in [i - M + 1, i], M keys, its own included.
/// Keys before s come from detached inputs (gradients reach the projections, not the earlier layers), keys from s on
/// are live. So values and gradients do not depend on how a sequence is cut into calls.
/// State: the branch's inputs x [B, C, D], at int64 [B, C] (-1: empty), document int64 [B, C], newest at the right end,
/// C = M + N - 1 ("same": M - 1), at most the pattern's horizon - 1, all of it allocated at the start. The kept
/// inputs are projected anew in each call, with the weights of that call.
/// keep "keys": instead of x the state holds k, v [B, G, C, d] as they were made, before the QkSteps: the same numbers
/// as long as the weights are the same, and no gradient to the projections from before s. A step costs nothing for
/// what is remembered but its read; the state is 2 G d / D times as large (twice with as many groups as heads).
/// start "zeros": M attended rows of zeros stand before position 0 (for imported models); `at` then counts from M.
struct Segment : Memory {
  struct Options {
    int64_t segment = 64, memory = 64;
    std::string reach = "segment", start = "empty", keep = "inputs";
    template <class V>
    void fields(V&& visit) {
      visit("segment", segment, "tokens of a segment N", at_least(1));
      visit("memory", memory, "keys before the segment (reach segment), or in all (reach same): M", at_least(1));
      visit("reach", reach, "how far a query sees: M before its segment's start, or M keys with its own",
            one_of({"segment", "same"}));
      visit("start", start, "what stands before the first token: nothing, or M attended rows of zeros",
            one_of({"empty", "zeros"}));
      visit("keep", keep,
            "what is kept of a token: its inputs, which each call projects anew, or its keys and values, which take "
            "more memory and make steps faster",
            one_of({"inputs", "keys"}));
    }
  };
  Segment(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  Read meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) override;
  int64_t reach() const override;
  int64_t seen(int64_t position) const override;
  std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest) const override;
  std::string keeps() const override;

 private:
  bool keeps_keys() const { return options_.keep == "keys"; }

  Options options_;
  Heads heads_;
  int64_t width_, capacity_;
};

}  // namespace kinfolk
