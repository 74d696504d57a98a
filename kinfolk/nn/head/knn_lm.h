// A language model that also asks what followed the most similar contexts of a text it has stored.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/core/options.h"
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/retrieve/retriever.h"

namespace kinfolk {

/// p(y) = lambda p_knn(y) + (1 - lambda) softmax(base scores)
/// p_knn(y) = sum_(s in N) [w_s = y] exp(-d_s / T) / sum_(s in N) exp(-d_s / T), N the k stored hidden states nearest
/// to this one, w_s the token that followed there, d "squared" or plain "l2" distance.  (Khandelwal et al. 2020) With a
/// datastore `read` returns log p, without one the base head's scores. Entries are hidden states after the last norm
/// (the article: the input of the last feed-forward layer), each with its next token: a datastore that was attached
/// (Retriever), or what `remember` was given, then the newest `capacity`, in the buffers "keys" float32 [N, D] and
/// "tokens" int64 [N]. A position whose place is known never meets its own entry; where no other is left, p is the
/// base's.
class KnnLm : public Head, public Retrieves {
 public:
  struct Options {
    Spec base = "lm";
    int64_t k = 64;
    double lambda = 0.25;
    double temperature = 10;
    std::string metric = "squared";
    std::string search = "exact";
    int64_t effort = 0;
    int64_t capacity = 200000;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("base", base, "the head that is wrapped");
      visit("k", k, "neighbours of a query", at_least(1));
      visit("lambda", lambda, "weight of the neighbours' distribution", between(0, 0.999));
      visit("temperature", temperature, "T: distances are divided by it", at_least(1e-6));
      visit("metric", metric, "squared: |q - k|^2 (the paper's code, FAISS); l2: |q - k| (the article's formula)",
            one_of({"squared", "l2"}));
      visit("search", search, "how a datastore on disk is searched", one_of({"exact", "graph", "ivf_pq"}));
      visit("effort", effort, "graph: candidates of a query; ivf_pq: cells looked into; 0: the standard number",
            at_least(0));
      visit("capacity", capacity, "entries kept in memory, the newest", at_least(1));
    }
  };
  KnnLm(const Options& options, const Context& context);
  /// Around a head that is there.
  KnnLm(const Options& options, std::shared_ptr<Head> base, const Size& size);
  Tensor read(const Tensor& x, Pass& pass) override;
  double flops(int64_t length) const override;
  bool wants_store() const override { return true; }
  void remember(const Tensor& x, const Tensor& target) override { retriever_->remember(x, target); }

  /// [M, V] of queries [M, D] at these places: the neighbours' distribution, differentiable in the queries; 0 where
  /// nothing is found.
  Tensor neighbours_say(const Tensor& queries, const Tensor& place = {});
  int64_t stored() const { return retriever_->stored(); }
  void forget() { retriever_->forget(); }  ///< empties the store

  Retriever& retriever() override { return *retriever_; }
  std::string search_kind() const override { return options_.search; }
  int64_t search_effort() const override { return options_.effort; }
  void tune(const Tuned& tuned, const std::vector<std::string>& but) override;
  const Options& options() const { return options_; }

 private:
  void make_store(int64_t width, const at::TensorOptions& device);
  Options options_;
  int64_t vocabulary_;
  std::shared_ptr<Head> base_;
  std::unique_ptr<Retriever> retriever_;
};

/// log(lambda p_knn + (1 - lambda) softmax(scores)), all [..., V]; rows of p_knn that are 0 leave softmax(scores).
Tensor join_distributions(const Tensor& scores, const Tensor& p_knn, double lambda);
/// [M, V]: weights exp(-d / T), normalised, of the tokens [M, k]; d is infinite where there is none.
Tensor distribution_of(const Tensor& distance, const Tensor& tokens, double temperature, int64_t vocabulary);

}  // namespace kinfolk
