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
  std::string kind;  ///< the branch's name in the recipe
};

class Layer : public torch::nn::Module {
 public:
  /// table: one [[layers]] entry of a recipe (repeat, branches, and norm, norm_kind, residual for branches without
  /// their own); path: where it stands, for messages.
  Layer(const Value& table, const Context& context, const std::string& path);
  /// signal (optional) is added to what the first branch reads, not to the stream (Universal Transformer, equation
  /// form).
  Tensor forward(Tensor x, Pass& pass, State* state, const Tensor& signal = {});
  State start(int64_t batch, at::TensorOptions like) const;
  double flops(int64_t length, int64_t from) const;
  Traits traits() const;
  const std::vector<Step>& steps() const { return steps_; }
  const Value& table() const { return table_; }  ///< its [[layers]] entry

  bool checkpointing = false;  ///< keep only the input, and recompute the layer in backward

 private:
  Tensor run(Tensor x, Pass& pass, State* state, const Tensor& signal);
  Value table_;
  std::vector<Step> steps_;
};

/// A module whose children are numbered: "0", "1", ...
struct List : torch::nn::Module {
  void add(size_t index, const std::shared_ptr<torch::nn::Module>& child) {
    register_module(std::to_string(index), child);
  }
};

/// What a model of both parts can do: the weaker of the two in each point, reasons joined.
Traits both(const Traits& a, const Traits& b);

/// The parameters below a module that want a gradient, each tensor once however often it is shared.
std::vector<std::pair<std::string, Tensor>> trainable(const torch::nn::Module& module);

}  // namespace kinfolk
