// A language model that also asks what followed the most similar contexts of a text it has stored.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinfolk/core/options.h"
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// p(y) = lambda p_knn(y) + (1 - lambda) softmax(base scores)
/// p_knn(y) = sum_(s in N) [w_s = y] exp(-d_s / T) / sum_(s in N) exp(-d_s / T), N the k stored hidden states nearest
/// to this one, w_s the token that followed there, d "squared" or plain "l2" distance.  (Khandelwal et al. 2020) With a
/// datastore `read` returns log p, without one the base head's scores. The store holds what `remember` was given:
/// hidden states after the last norm (the article: the input of the last feed-forward layer), each with its next token,
/// from training text only; to leave out a position's own entry is the caller's matter. Beyond `capacity` entries the
/// oldest are forgotten. It lies in the buffers "keys" float32 [N, D] and "tokens" int64 [N].
class KnnLm : public Head {
 public:
  struct Options {
    Spec base = "lm";
    int64_t k = 64;
    double lambda = 0.25;
    double temperature = 10;
    std::string metric = "squared";
    int64_t capacity = 200000;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("base", base, "the head that is wrapped");
      visit("k", k, "neighbours of a query", at_least(1));
      visit("lambda", lambda, "weight of the neighbours' distribution", between(0, 0.999));
      visit("temperature", temperature, "T: distances are divided by it", at_least(1e-6));
      visit("metric", metric, "squared: |q - k|^2 (the paper's code, FAISS); l2: |q - k| (the article's formula)",
            one_of({"squared", "l2"}));
      visit("capacity", capacity, "entries kept, the newest", at_least(1));
    }
  };
  KnnLm(const Options& options, const Context& context);
  Tensor read(const Tensor& x, Pass& pass) override;
  double flops(int64_t length) const override;
  bool wants_store() const override { return true; }
  void remember(const Tensor& x, const Tensor& target) override;  ///< entries whose target is negative are passed over

  /// [M, V] of queries [M, D]: the neighbours' distribution, differentiable in the queries.
  Tensor neighbours_say(const Tensor& queries);
  int64_t stored() const;
  void forget();  ///< empties the store

 private:
  void settle();  // joins what was remembered into the buffers
  Options options_;
  int64_t vocabulary_;
  std::shared_ptr<Head> base_;
  Tensor keys_, tokens_;  // buffers; their storage is replaced, so that the registered tensors stay these
  Tensor squares_;        // |key|^2, [N], of the keys as they were at `squared_` (place and version)
  std::pair<const void*, uint32_t> squared_ = {nullptr, 0};
  std::vector<Tensor> new_keys_, new_tokens_;
  int64_t new_count_ = 0;
};

}  // namespace kinfolk
