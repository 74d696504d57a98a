// A language model whose last hidden state is mixed with the embeddings of retrieved tokens, by a learned gate.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/core/options.h"
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/retrieve/retriever.h"

namespace kinfolk {

/// m = sum_i softmax_i(y_i.h) y_i,  g = sigmoid(w_g.h) (one number),  z = (1 - g) m + g h,  p = softmax(E z)
/// y_i: rows of the input's table E for the tokens that followed the k stored hidden states nearest to h; the scores
/// are not scaled.  (Yogatama et al. 2021; short context and segment memory are the layers' matter) Entries come from a
/// datastore as in knn_lm (a position never meets its own), and the search itself carries no gradient. Where nothing is
/// retrieved z = h. A datastore holds hidden states of these very layers, so that with one attached they must stay as
/// they are: no gradient passes to h and y, and training with a datastore leaves all but the gate "gate" [D] alone.
class Spalm : public Head, public Retrieves {
 public:
  struct Options {
    Spec base = "lm";
    int64_t k = 4;
    std::string search = "exact";
    int64_t effort = 0;
    int64_t capacity = 200000;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("base", base, "the head that reads the mixture: E z");
      visit("k", k, "tokens retrieved for a position", at_least(1));
      visit("search", search, "how a datastore on disk is searched", one_of({"exact", "graph", "ivf_pq"}));
      visit("effort", effort, "graph: candidates of a query; ivf_pq: cells looked into; 0: the standard number",
            at_least(0));
      visit("capacity", capacity, "entries kept in memory, the newest", at_least(1));
    }
  };
  Spalm(const Options& options, const Context& context);
  Tensor read(const Tensor& x, Pass& pass) override;
  double flops(int64_t length) const override;
  bool wants_store() const override;  ///< once its gate has learned: before, it would mix at random
  void remember(const Tensor& x, const Tensor& target) override { retriever_->remember(x, target); }

  Retriever& retriever() override { return *retriever_; }
  std::string search_kind() const override { return options_.search; }
  int64_t search_effort() const override { return options_.effort; }
  void tune(const Tuned&, const std::vector<std::string>&) override {}  ///< the gate is learned instead

 private:
  Options options_;
  std::shared_ptr<Head> base_;
  Tensor table_;  // E, the input's [V, D]
  Tensor gate_;   // w_g [D]
  std::unique_ptr<Retriever> retriever_;
};

/// What SPALM makes of h [..., D] and retrieved embeddings y [..., k, D]; `none` bool [..., k] marks those that are not
/// there, undefined: all are.
struct Mixed {
  Tensor m;  ///< [..., D], 0 where nothing was retrieved
  Tensor g;  ///< [...]
  Tensor z;  ///< [..., D], h where nothing was retrieved
};
Mixed mix_retrieved(const Tensor& h, const Tensor& y, const Tensor& gate, const Tensor& none = {});

}  // namespace kinfolk
