// What a model is trained for: the targets of a batch, and the loss.
#pragma once
#include <memory>
#include <string>

#include "kinfolk/nn/model.h"

namespace kinfolk {

/// Sums, so that micro-batches can be weighed by their tokens: the loss of a step is (sum of sums) / (sum of counts).
struct Loss {
  Tensor sum;         ///< scalar with a graph, in nats, over the targets that are not -100
  int64_t count = 0;  ///< such targets
  Tensor auxiliary;   ///< scalar with a graph: weighted auxiliary losses (means over valid tokens); undefined: none
};

struct Objective {
  virtual ~Objective() = default;
  virtual Loss loss(Model& model, Pass& pass) = 0;
  /// What it asks for, where that is not every byte (pixel, answer): "hidden " bytes. Stands before the unit of a loss.
  virtual const char* asked() const { return ""; }
};

std::shared_ptr<Objective> make_objective(const Recipe& recipe);  ///< [objective] kind; "causal" when absent

}  // namespace kinfolk
