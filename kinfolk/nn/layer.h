// A layer is a list of steps; each is a branch with its norm and its way to meet the stream.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/nn/family.h"
#include "kinfolk/nn/norm.h"

namespace kinfolk {

/// norm "before": x = meet(x, branch(norm x)); "after": x = norm(meet(x, branch x)); "both"; "none".
struct Step {
  std::shared_ptr<Branch> branch;
  std::shared_ptr<Norm> norm_before, norm_after;
  std::shared_ptr<Residual> residual;
};

class Layer : public torch::nn::Module {
 public:
  /// table: one [[layers]] entry of a recipe; path: where it stands, for messages.
  Layer(const Value& table, const Context& context, const std::string& path);
  /// signal (optional) is added to what the first branch reads, not to the stream (Universal Transformer, equation
  /// form).
  Tensor forward(Tensor x, Pass& pass, State* state, const Tensor& signal = {});
  State start(int64_t batch, at::TensorOptions like) const;
  double flops(int64_t length, int64_t from) const;
  Traits traits() const;
  const std::vector<Step>& steps() const { return steps_; }

 private:
  std::vector<Step> steps_;
};

}  // namespace kinfolk
