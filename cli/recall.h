// eval and compare of tasks of recall: the share of right answers instead of bits per byte.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/training.h"
#include "kinfolk/train/data/recall_task.h"

namespace kinfolk {

/// What a member answers, over its seeds.
struct RecallRow {
  std::string name;
  int64_t parameters = 0, state_bytes = 0, tokens = 0, answers = 0;
  double accuracy = 0, error = 0, bits = 0, seconds = 0;
};
nlohmann::json to_json(const RecallRow& row);

/// The folder of a member's run below --out.
std::string recall_run(const std::string& out, const std::string& member, int64_t seed);
/// Trains a member on the task of the corpus, in the folders `recall_run`, and scores each seed; what was trained
/// before is only scored. Nothing when it was stopped: `status` then is the exit status.
std::optional<std::vector<RecallRow>> train_recall(const Recipe& recipe, const Size& size, const Corpus& corpus,
                                                   const TrainingFlags& flags, int64_t seeds, int& status);
/// A trained run asked another task.
RecallRow ask_recall(const std::string& run, const RecallTask& task);
/// The mean over seeds, whose spread is the error where there are several.
RecallRow over_seeds(const std::vector<RecallRow>& seeds);

/// Prints how well a run answers a task, of its own length or another; `tokens` to read at most, 0: 64Ki.
void eval_recall(const std::string& checkpoint, const std::string& task, int64_t tokens,
                 const std::vector<std::string>& sets, bool json);

/// Trains recipes on a task, at the parameters of --budget or of the first, and prints the table that it writes to
/// OUT/table.md and, as JSON, to OUT/report.json. Returns the exit status.
int compare_recall(const std::vector<std::string>& recipes, const Corpus& corpus, TrainingFlags flags, int64_t seeds);

}  // namespace kinfolk
