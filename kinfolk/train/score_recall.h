// How well a model answers a task of recall.
#pragma once
#include <functional>

#include "kinfolk/nn/model.h"
#include "kinfolk/train/data/recall_task.h"

namespace kinfolk {

struct RecallScore {
  double accuracy = 0;  ///< the share of answers whose token has the highest score
  double error = 0;     ///< its standard error over examples
  double bits = 0;      ///< of an answer
  int64_t examples = 0, answers = 0;
  int64_t state_bytes = 0;  ///< of one lane after an example; 0: it does not stream
};

/// The first `examples` held-out examples of the task. Refuses a task whose tokens the model does not know, or that is
/// longer than it can take.
RecallScore score_recall(Model& model, const RecallTask& task, int64_t examples,
                         const std::function<void(double share)>& progress = {});

}  // namespace kinfolk
