// Predict the next token.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kinfolk/objective/objective.h"

namespace kinfolk {

/// Cross-entropy of softmax(scores) against the fact "target", in nats, summed in float32 over the targets that are
/// not -100. When rows x vocabulary exceed `tile` scores, they are made tile by tile and again in backward, so that
/// memory is that of one tile.
struct Causal : Objective {
  struct Options {
    int64_t tile = int64_t{1} << 24;  // 64 MiB in float32: malloc maps these, so they leave no holes in the heap
    template <class Visit>
    void fields(Visit&& visit) {
      visit("tile", tile, "scores (rows x vocabulary) held at once", at_least(1));
    }
  };
  explicit Causal(const Options& options) : options_(options) {}
  Loss loss(Model& model, Pass& pass) override;

 private:
  Options options_;
};

/// The sum over the rows of x [N, D] of -log p(target), p = softmax(head(x)); target int64 [N], in [0, V).
/// `parameters`: all that the head may use, its own and those it shares.
Tensor cross_entropy(Head& head, const std::vector<Tensor>& parameters, const Tensor& x, const Tensor& target,
                     int64_t tile, int64_t vocabulary, const Pass& pass);

/// The loss of a model that is run over the pass and then asked, at each position, for the token that `wanted` says:
/// int64 [B, L], -100: none. Called after the run, when the pass has its positions.
Loss token_loss(Model& model, Pass& pass, int64_t tile, const std::function<Tensor(const Pass& pass)>& wanted);

/// The fact "target", int64 like the tokens; Error without it.
Tensor target_of(const Batch& batch);

/// sum of weight * loss by name; undefined when there are none. Every loss needs a weight (0 switches it off) and every
/// weight a loss, else Error.
Tensor weigh_losses(const std::map<std::string, Tensor>& losses, const std::map<std::string, double>& weights);

}  // namespace kinfolk
