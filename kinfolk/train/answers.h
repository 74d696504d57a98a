// How many answers of a task a model gives right.
#pragma once
#include <cstdint>

#include "kinfolk/nn/model.h"

namespace kinfolk {

/// Over the targets of a batch that are not -100: how many there are, how many have the highest score of their row, and
/// the sum of -log p of all, in nats.
struct Answers {
  int64_t count = 0, right = 0;
  double loss = 0;

  double accuracy() const { return static_cast<double>(right) / static_cast<double>(count); }
};

/// Adds those of a batch, each of its lanes read from its beginning; without gradients.
void add_answers(Answers& sum, Model& model, const Batch& batch);

}  // namespace kinfolk
