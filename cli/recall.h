// eval and compare of tasks of recall: the share of right answers instead of bits per byte.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/training.h"

namespace kinfolk {

/// Prints how well a run answers a task, of its own length or another; `tokens` to read at most, 0: 64Ki.
void eval_recall(const std::string& checkpoint, const std::string& task, int64_t tokens,
                 const std::vector<std::string>& sets, bool json);

/// Trains recipes on a task, at the parameters of --budget or of the first, and prints the table that it writes to
/// OUT/table.md and, as JSON, to OUT/report.json. Returns the exit status.
int compare_recall(const std::vector<std::string>& recipes, const Corpus& corpus, TrainingFlags flags, int64_t seeds);

}  // namespace kinfolk
