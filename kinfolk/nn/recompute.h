// Gradient checkpointing: forward without a graph, the graph made anew in backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "kinfolk/nn/family.h"

namespace kinfolk {

/// f(inputs, again): `again` is true in backward, where what it wrote elsewhere must not be written twice.
using Rerun = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs, bool again)>;

/// The first input once more, in backward, where it can be computed from what comes later and need not be kept.
using Recall = std::function<Tensor()>;

/// f(inputs) with gradients for `inputs` and for `parameters` (which f uses without being handed them), keeping only
/// the inputs, and not the first where `recall` gives it: f runs once without a graph, and again in backward. f must
/// give the same result both times, and must not reach tensors that want a gradient by another way. All tensors
/// defined. (Chen et al. 2016)
std::vector<Tensor> recompute(Rerun f, const std::vector<Tensor>& inputs, const std::vector<Tensor>& parameters,
                              Recall recall = {});

/// What a part of a model makes of its inputs in a pass, with a state to carry or none.
using ModelPart = std::function<Tensor(const std::vector<Tensor>& inputs, Pass& pass, State* state)>;

/// f(inputs, pass, state) by `recompute`: state, losses, draws, trace and updates come out as if f had run plainly.
/// What f depends on besides (batch, positions, the state before) is held by value, since the caller's may be gone or
/// moved on when backward runs it again. `owner` holds the parameters that f uses, and lives as long as the graph.
/// f runs with a graph in backward alone.
Tensor recompute_part(const std::shared_ptr<torch::nn::Module>& owner, const ModelPart& f, std::vector<Tensor> inputs,
                      Pass& pass, State* state, Recall recall = {});

}  // namespace kinfolk
