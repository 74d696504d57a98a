#include "kinfolk/nn/depth/act.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Act::Act(const ActOptions& options, const Tensor& initial) : options_(options) {
  if (options.form != "graves" && options.form != "reference") {
    fail("[act.form] expected one of graves reference; found ", options.form);
  }
  const auto sizes = initial.sizes().slice(0, initial.dim() - 1);
  // Four tensors of their own: none may alias another, for each is replaced at its own pace.
  running_ = at::ones(sizes, initial.options().dtype(at::kBool));
  updates_ = at::zeros(sizes, initial.options().dtype(at::kLong));
  remainder_ = at::zeros(sizes, initial.options());
  sum_ = at::zeros(sizes, initial.options());
  mean_ = options.form == "reference" ? initial : at::zeros_like(initial);
}

void Act::add(const Tensor& state, const Tensor& probability, bool last) {
  if (state.sizes() != mean_.sizes() || probability.sizes() != sum_.sizes()) {
    fail("[act] expected states ", mean_.sizes(), " and probabilities ", sum_.sizes(), "; found ", state.sizes(),
         " and ", probability.sizes());
  }
  const bool graves = options_.form == "graves";
  const Tensor rest = 1 - sum_, sum = sum_ + probability;
  const double bound = 1 - options_.eps;
  const Tensor crosses = running_.logical_and(options_.strict ? sum.gt(bound) : sum.ge(bound));
  const Tensor halts = last && graves ? running_ : crosses;
  const Tensor weight = at::where(halts, rest, probability).masked_fill(running_.logical_not(), 0);
  const Tensor w = weight.unsqueeze(-1);
  mean_ = graves ? mean_ + w * state : w * state + (1 - w) * mean_;
  remainder_ = at::where(halts, rest, remainder_);
  sum_ = at::where(running_, sum, sum_);
  updates_ = updates_ + running_.to(at::kLong);
  running_ = last ? at::zeros_like(running_) : running_.logical_and(halts.logical_not());
  weights_.push_back(weight);
}

Tensor Act::ponder() const { return updates_.to(remainder_.scalar_type()) + remainder_; }

}  // namespace kinfolk
