// A feed-forward that runs in chunks along the length.
#pragma once
#include <memory>
#include <string>

#include "kinfolk/core/options.h"
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// y = concat_c(feed(x_c)), x_c the tokens of one chunk: what the feed computes at once, with the hidden values of one
/// chunk in memory at a time. Where a gradient is wanted each chunk keeps its input alone and is computed again in
/// backward. (Kitaev et al. 2020, Reformer, section 3; Liu and Abbeel 2023, Blockwise Parallel Transformer)
/// A feed with a state (separable) hands it from chunk to chunk. Dropout draws once a chunk.
/// Its parameters have the names that they have without chunks, so that a checkpoint serves both.
class Chunked : public Branch {
 public:
  struct Options {
    Spec feed = "mlp";
    int64_t chunk = 1024;
    template <class Visit>
    void fields(Visit&& visit) {
      visit("feed", feed, "the feed-forward that is wrapped, with its options");
      visit("chunk", chunk, "tokens of all lanes together whose hidden values are held at once", at_least(1));
    }
  };
  Chunked(const Options& options, const Context& context);
  Traits traits() const override { return feed_->traits(); }
  State start(int64_t batch, at::TensorOptions like) const override { return feed_->start(batch, like); }
  std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest) const override {
    return feed_->truncate(state, lane, position, newest);
  }
  double flops(int64_t length, int64_t from) const override { return feed_->flops(length, from); }
  Tensor forward(const Tensor& x, Pass& pass, State* state) override;
  void train(bool on = true) override;
  std::string explain() const override;

 private:
  Tensor run(const Tensor& x, Pass& pass, State* state) const;
  std::shared_ptr<Branch> feed_;
  int64_t chunk_;
};

}  // namespace kinfolk
