// Who sees whom, measured: which outputs change when a stretch of tokens is changed.
#pragma once
#include "kinfolk/nn/model.h"

namespace kinfolk {

/// tokens int64 [L] are cut into `cells` stretches. Entry (i, j) is the mean total variation between the next-token
/// distributions of stretch i with and without all tokens of stretch j replaced by others. [cells, cells], 0 to 1.
/// facts: of a batch of one lane.
Tensor sight(Model& model, const Tensor& tokens, int64_t cells, const std::map<std::string, Tensor>& facts = {});

/// The same with one token a cell, of an untrained member of the recipe with two layers a group at most; true where
/// anything changed.
Tensor sight_of(const Recipe& recipe, int64_t length, const std::map<std::string, Tensor>& facts = {});

}  // namespace kinfolk
