// What is carried from one call to the next.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace kinfolk {
using at::Tensor;

/// A tree of named tensors; dim 0 of every tensor is the batch (its lanes). It has no slots of its own: a mixer keeps
/// the names of its tensors in one place, and a layer keeps its branches in `parts`.
struct State {
  std::map<std::string, Tensor> tensors;  ///< each [B, ...]
  std::map<std::string, State> parts;     ///< "layer.3" -> "branch.0" -> ...

  bool empty() const { return tensors.empty() && parts.empty(); }
  void transform(const std::function<Tensor(const Tensor&)>& f);
  void detach();                     ///< cuts the graph: between optimiser steps
  State clone() const;               ///< a copy that shares nothing
  int64_t bytes() const;             ///< of what the tensors show: what bounded members keep constant
  int64_t held_bytes() const;        ///< of the memory behind them, each storage once: with room for what comes
  void select(const Tensor& lanes);  ///< int64 [n]: reorders, repeats or drops lanes
  /// Overwrites a lane with lane `from` of another state of the same member (a reset: of a fresh one). Where a cache
  /// holds another number of columns, the shorter is filled with empty ones at the left (0, and -1 in a tensor named
  /// "at"), and those that are then empty in every lane go. Throws Error, changing nothing, for another tree or sizes.
  void put_lane(int64_t lane, const State& one, int64_t from = 0);
  std::map<std::string, Tensor> flat(const std::string& prefix = "") const;  ///< "layer.3/branch.0/k" -> tensor
  static State from_flat(const std::map<std::string, Tensor>& flat);
};

}  // namespace kinfolk
