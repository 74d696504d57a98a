// A forward pass of an operator of the library with its graph, for its backward operator. Not a public header.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <vector>

#include "kinfolk/ops/operator_library.h"

namespace kinfolk {

/// change(tensor) for every defined tensor among the values, lists opened, in order.
void each_tensor(torch::jit::Stack& values, const std::function<void(Tensor&)>& change);
std::vector<Tensor> tensors_of(torch::jit::Stack values);

/// The results of a call, as tensors of their own: none shares memory with an argument or with another result.
std::vector<Tensor> run(const LibraryOperator& op, const c10::FunctionSchema& schema, const torch::jit::Stack& values);

struct Recording {
  std::vector<Tensor> tensors;  ///< those among the arguments; leaves where gradients are wanted
  std::vector<Tensor> results;

  Recording(const LibraryOperator& op, const c10::FunctionSchema& schema, torch::jit::Stack values,
            const std::vector<bool>& wants);
  bool has(const std::vector<bool>& wants) const;  ///< whether it can give these gradients
  /// Of the tensors that are wanted; zeros where no result depends on them. May be asked more than once.
  std::vector<Tensor> gradients(const std::vector<std::optional<Tensor>>& grads, const std::vector<bool>& wants) const;
};

/// A recording that travels through a graph as a tensor of one byte, and lives as long as the memory of that.
Tensor tape_of(Recording recording);
/// What such a tensor carries; null for any other.
const Recording* recording_of(const Tensor& tape);

}  // namespace kinfolk
