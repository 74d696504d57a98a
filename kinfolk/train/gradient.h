// Loss and gradient of one step, computed in parts.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kinfolk/objective/objective.h"

namespace kinfolk {

/// Sums over all parts. The gradients that are left in the weights are those of sum + auxiliary; divided by `count`
/// (AdamW::step's scale) they are those of the mean over targets.
struct StepLoss {
  double sum = 0;                              ///< nats
  int64_t count = 0;                           ///< targets
  std::map<std::string, double> losses;        ///< auxiliary, weighed by targets: divide by `count`
  std::vector<std::function<void()>> updates;  ///< to be run after the optimiser step
};

/// Lanes [from, to) of every tensor of a batch.
Batch lanes_of(const Batch& batch, int64_t from, int64_t to);

/// Forward and backward of the batch, its lanes in `parts` equal groups. `states` is empty, or one state a part; each
/// is carried on and detached. seed(part) is that of a part's draws.
StepLoss accumulate_gradient(Model& model, Objective& objective, const Batch& batch, int64_t parts,
                             std::vector<State>& states, bool bf16, const std::function<uint64_t(int64_t)>& seed);

}  // namespace kinfolk
