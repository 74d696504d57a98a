// Attention over quantised keys, at a cost that is linear in the length (Transformer-VQ, Lingle 2023).
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/linear.h"
#include "kinfolk/nn/score/score.h"
#include "kinfolk/ops/vq.h"

namespace kinfolk {

/// q, k = LN(W x) d^-1/4 a head, v = W x; k^ = C_z, the nearest of S codewords;
/// out_i = sum_{j <= i} softmax_j((q_i + u) . k^_j + b_ij) v_j over all tokens, with the `score` steps b only where j
/// is in the block of i or the one before (blocks of R = `block` tokens, counted in each lane's own count of tokens).
/// All older keys are known by code: how many and the mean of their values, S pairs a head, are what is kept of them.
/// gate "silu": v = silu(W x), out_i silu(W x)_i: the article's block, which needs no feed-forward beside it.
/// Gradients reach keys of the own block and the one before straight through the quantisation, those of older keys
/// none; values are reached everywhere. Loss "commitment": mean over tokens and heads of |k - sg(k^)|^2.
/// The codebook is m / n, moved in training after the optimiser step: n and m follow how many keys a codeword has and
/// their sum with `decay`. A codeword whose n falls below `dead` times the mean of its head is put on a random key of
/// the call and gets the mean n. In evaluation it stays as it is.
/// State: k, v [B, H, 2R - 1, d], code int64 [B, H, 2R - 1], at, document int64 [B, 2R - 1], newest at the right end;
/// count int64 [B, H, S], mean [B, H, S, d], of int64 [B, 1]: their document.
/// Submodules: q, k, v, out, gate [H d, D], score.N; parameter u [H, d]; buffers count [H, S], sum [H, S, d].
struct VqAttention : Branch {
  struct Options {
    int64_t heads = 0, codes = 256, block = 64;
    double decay = 0.99, dead = 0.03;
    std::string gate = "none";
    std::vector<Spec> score;
    template <class V>
    void fields(V&& visit) {
      visit("heads", heads, "heads H; 0: as the size says", at_least(0));
      visit("codes", codes, "codewords of a head S", at_least(1));
      visit("block", block, "tokens of a block R: the scores of the own one and the one before have positions",
            at_least(1));
      visit("decay", decay, "of the moving averages that the codewords are made of", between(0, 1));
      visit("dead", dead, "codewords with less than this share of the mean use start anew; 0: none", between(0, 1));
      visit("gate", gate, "on the output", one_of({"none", "silu"}));
      visit("score", score, "steps on scores within two blocks, in order");
    }
  };
  VqAttention(const Options& options, const Context& context);

  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  double flops(int64_t length, int64_t from) const override;
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  std::string explain() const override;
  std::vector<std::shared_ptr<const Pattern>> patterns() const override;
  StateKnob state_knob() const override { return {.option = "codes"}; }

  /// Quantises keys and reads: normalised, scaled queries and keys and values [B, H, L, d] -> [B, H, L, d].
  Tensor read(const Tensor& queries, const Tensor& keys, const Tensor& values, Pass& pass, State* state);
  Tensor codebook() const { return codebook_of(count, sum); }  ///< [H, S, d]

  std::shared_ptr<Linear> q, k, v, out, gate;
  std::vector<std::shared_ptr<Score>> score;
  Tensor u, count, sum;

 private:
  struct Columns;
  Read read_near(const Columns& all, const Tensor& content, const Tensor& raw, const Pass& pass);
  Read read_far(const Columns& all, const Tensor& content, State& state) const;
  void learn(const Tensor& keys, const Tensor& code, Pass& pass);

  Options options_;
  int64_t heads_, width_;
  std::shared_ptr<const Pattern> near_;
};

}  // namespace kinfolk
