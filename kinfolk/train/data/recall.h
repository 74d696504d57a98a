// Tasks of recall as training data, drawn as they are needed: associative recall, selective copying, induction heads.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kinfolk/nn/context.h"
#include "kinfolk/train/data/recall_task.h"
#include "kinfolk/train/data/source.h"

namespace kinfolk {

/// Whether a path means a task: "recall:" and what `read_recall` reads.
bool holds_recall(const std::string& path);

/// "recall:mqar", "recall:selective_copy", "recall:induction" or "recall:distance", then ",key=value" as often as
/// wanted, with the keys of MqarOptions, SelectiveCopyOptions, InductionOptions or DistanceOptions. Throws UsageError
/// for everything else.
RecallTask read_recall(const std::string& path);

/// The task as a corpus without text: what is held out is the stream of another seed.
Corpus recall_corpus(const std::string& path);

/// One example: ids, and -100 or the answer wanted at each position.
struct RecallExample {
  std::vector<int64_t> tokens, target;
};
/// Example i of a data seed; every example is a function of the two.
RecallExample recall_example(const RecallTask& task, uint64_t seed, uint64_t index);
/// The data seed of what is held out.
uint64_t held_out_seed(const RecallTask& task);

/// The sizes that a task decides: its vocabulary, a context of one example.
Size size_for(Size size, const RecallTask& task);

/// Lane b of step s holds example s * B + b of a seed; with task.examples only so many are drawn, again and again.
class RecallExamples : public Source {
 public:
  RecallExamples(const RecallTask& task, uint64_t seed, int64_t lanes) : task_(task), seed_(seed), lanes_(lanes) {}
  Batch at(int64_t position, int64_t length) const override;
  bool whole() const override { return true; }

 private:
  RecallTask task_;
  uint64_t seed_;
  int64_t lanes_;
};

/// The examples that a run trains on.
std::unique_ptr<Source> recall_source(const RecallTask& task, const TrainSettings& settings);

}  // namespace kinfolk
