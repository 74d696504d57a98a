// Softmax attention over several heads, made of slots: qk steps, score steps, a pattern and a memory.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/score/score.h"
#include "kinfolk/pattern/heads.h"

namespace kinfolk {

/// y = concat_h(softmax_j(score(q_i, k_j)) v_j) W_out, heads H and G groups of keys and values, each met by H/G heads
/// (Vaswani et al. 2017; Ainslie et al. 2023). The score is scale q_i . k_j after the `qk` steps, then changed by the
/// `score` steps in order; the pattern says which pairs meet, the memory what is kept between calls.
/// Submodules: q [H d, D], k, v [G d, D], out [D, H d], each Linear with rows head-major; qk.N, score.N, memory.
struct Attention : Branch {
  struct Options {
    int64_t heads = 0, groups = 0, head_width = 0;
    std::string pattern = "causal";
    std::vector<std::string> per_head;
    std::vector<Spec> qk, score;
    Spec memory = "cache";
    bool bias = false;
    double scale = 0, dropout = -1;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "query heads H; 0: as the size says", at_least(0));
      visit("groups", groups, "heads of keys and values G, a divisor of H; 0: H", at_least(0));
      visit("head_width", head_width, "width of a head d; 0: D / H", at_least(0));
      visit("pattern", pattern, "which pairs may meet, such as \"causal & window(256)\"");
      visit("per_head", per_head, "instead of pattern: one a head, over and over; their number divides H");
      visit("qk", qk, "steps on queries and keys, in order");
      visit("score", score, "steps on scores, in order");
      visit("memory", memory, "what is kept from call to call");
      visit("bias", bias, "the four projections have one");
      visit("scale", scale, "of the dot product; 0: 1/sqrt(d)", at_least(0));
      visit("dropout", dropout, "of the attention weights; -1: as the size says", between(-1, 0.95));
    }
  };
  Attention(const Options& options, const Context& context);

  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
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
  std::vector<std::shared_ptr<const Pattern>> patterns() const override { return pattern_.each; }

  /// Raw keys and values [B, G, S, d] of inputs [B, S, D].
  Eyes::KeyValue project(const Tensor& x) const;
  /// The same and queries, with the projections as constants (Eyes::project_constant).
  Eyes::Constant project_constant(const Tensor& x) const;
  /// Raw keys [B, G, S, d] at int64 [B, S] as a memory may keep them (Eyes::prepare_keys).
  std::vector<Tensor> prepare_keys(const Tensor& k, const Tensor& at);
  /// Raw queries [B, H, L, d] at int64 [B, L] (-1: invalid) look at sets of keys, through steps, pattern and scores.
  /// The pattern reads the facts of the batch, if given; of_queries: what a score step asked for (Score::of_queries).
  Read look(const Tensor& q, const Tensor& at, const Tensor& document, std::vector<Keys> keys, const Look& how = {},
            double dropout = 0, uint64_t seed = 0, const std::map<std::string, Tensor>& facts = {},
            const Tensor& of_queries = {});
  bool keys_final() const { return keys_final_; }
  /// Raw queries [B, H, L, d] at int64 [B, L] after the `qk` steps.
  std::vector<QueryBand> bands(const Tensor& q, const Tensor& at);
  /// Raw keys [B, G, S, d] at int64 [B, S] after them, of the queries of one stage (QkStep::stage) or of all.
  std::vector<KeyBand> key_bands(const Tensor& k, const Tensor& at, std::optional<int64_t> stage);

  std::shared_ptr<Linear> q, k, v, out;
  std::vector<std::shared_ptr<QkStep>> qk;
  std::vector<std::shared_ptr<Score>> score;
  std::shared_ptr<Memory> memory;

 private:
  bool shown(const QueryBand& band) const;  ///< at some distance that the pattern shows
  void choose_kept(const Context& context);

  Heads heads_;
  void set_pattern(AttendPlan& plan, const HeadPatterns& patterns) const;

  HeadPatterns pattern_;
  double dropout_;
  bool keys_final_ = true;
  QkStep* staged_ = nullptr;       ///< the step whose keys depend on the query's stage
  std::vector<size_t> kept_ = {};  ///< the bands whose keys are kept, the farthest first; empty: keys are kept raw
};

}  // namespace kinfolk
