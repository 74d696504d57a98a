// Gradient checkpointing: forward without a graph, the graph made anew in backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace kinfolk {
using at::Tensor;

/// f(inputs, again): `again` is true in backward, where what it wrote elsewhere must not be written twice.
using Rerun = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, bool again)>;

/// f(inputs) with gradients for `inputs` and for `parameters` (which f uses without being handed them), keeping only
/// the inputs: f runs once without a graph, and again in backward. f must give the same result both times, and must not
/// reach tensors that want a gradient by another way. All tensors defined. (Chen et al. 2016)
std::vector<Tensor> recompute(Rerun f, const std::vector<Tensor>& inputs, const std::vector<Tensor>& parameters);

}  // namespace kinfolk
