// Attention among tokens that a random hash puts together: the Reformer's.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/mixers/group_cache.h"
#include "kinfolk/nn/reads_past.h"
#include "kinfolk/ops/attend_groups.h"

namespace kinfolk {

/// LSH attention (Kitaev et al. 2020) with shared queries and keys: q = W x, k_j = q_j / |q_j|, scores q_i .
/// k_j/sqrt(d). In each of R rounds, tokens are hashed by random rotations into n buckets (h = argmax [q R; -q R]),
/// sorted by bucket and position, and cut into chunks; i meets j != i where both have one bucket and j lies in the
/// chunk of i or the one before it. The rounds are joined by their normalisers; a pair that meets in several counts
/// once (`dedup`), so that the result is the softmax over all keys met. A token that meets none reads its own value.
/// Sequences are hashed and cut each by itself: neither padding nor another document moves a token.
/// chunks "sorted" is the published form. It reads no later value, but later tokens move the borders of chunks, and so
/// which earlier ones a token meets: causal in its values alone. With "bucket", chunks are counted within each bucket
/// and the number of buckets is that of the training length: causal without exception, and streaming. Its state keeps
/// all keys (mixers/group_cache); a token meets those of two chunks a round. Submodules: q, v, out (Linear [D, D], rows
/// head-major); buffer rotations [H, R, F, d, m] (ops/angular_hash), drawn once and saved with the weights.
struct LshAttention : Branch, ReadsPast {
  struct Options {
    int64_t heads = 0, rounds = 4, chunk = 64, bucket_count = 0;
    std::string buckets = "same", wrap = "none", chunks = "sorted";
    bool causal = true, dedup = true, redraw = false, bias = false;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: as the size says", at_least(0));
      visit("rounds", rounds, "hashes R, 16 at most", at_least(1));
      visit("chunk", chunk, "tokens of a chunk", at_least(1));
      visit("bucket_count", bucket_count,
            "buckets n of a round, an even number; 0: the power of two from tokens / chunk on", at_least(0));
      visit("buckets", buckets, "who meets in a chunk: tokens of the same bucket, or of any",
            one_of({"same", "across"}));
      visit("wrap", wrap, "what the first chunk has before it: none, the last of its round, of the round before",
            one_of({"none", "round", "all"}));
      visit("chunks", chunks, "cut from all that is sorted, or within each bucket", one_of({"sorted", "bucket"}));
      visit("causal", causal, "a token reads no later one");
      visit("dedup", dedup, "a pair that several rounds put together counts once");
      visit("redraw", redraw, "new rotations in every call of training, from the seed of the pass");
      visit("bias", bias, "biases of the projections");
    }
  };
  LshAttention(const Options& options, const Context& context);

  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  bool reads_past_alone() const override { return options_.causal && !traits().causal; }
  StateKnob state_knob() const override;
  std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest) const override;
  int64_t most_bytes(int64_t batch, at::TensorOptions like, int64_t newest) const override;

  /// Shared queries and keys, and values [B, H, L, d] -> [B, H, L, d].
  Tensor read(const Tensor& qk, const Tensor& values, Pass& pass, State* state = nullptr);
  /// What read meets by: who meets whom of tokens with these codes, of which those from `first` on ask.
  std::shared_ptr<const GroupPlan> plan(const Tensor& code, const Sequences& sequences, int64_t first = 0) const;
  int64_t buckets(int64_t tokens) const;  ///< n of a sequence of so many

  std::shared_ptr<Linear> q, v, out;
  Tensor rotations;

 private:
  Tensor draw(const at::Generator& generator) const;
  bool by_bucket() const { return options_.chunks == "bucket"; }
  Options options_;
  int64_t heads_, width_, usual_;
  GroupCache cache_;
};

}  // namespace kinfolk
