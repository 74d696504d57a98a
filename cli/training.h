// What train and compare share: flags of a training run, and the run itself.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kinfolk/train/data/bytes.h"
#include "kinfolk/train/trainer.h"

namespace CLI {
class App;
}

namespace kinfolk {

struct TrainingFlags {
  std::string data, valid, out, size = "tiny", budget, state_budget;
  std::string from;         ///< a run whose tensors the training begins with; empty: none
  bool freeze = false;      ///< those do not learn
  std::string store;        ///< a datastore that the head retrieves from while the rest is frozen; empty: none
  bool size_given = false;  ///< else, with `from`, the size is that of the run
  std::vector<std::string> sets;
  std::map<std::string, std::string> settings;  ///< by key of TrainSettings, as typed
  int64_t seed_offset = 0;                      ///< compare: added to the seed
  std::string title;                            ///< of the progress bar

  void add_to(CLI::App& command);
  Corpus corpus() const;
  std::string budget_words(const Recipe& recipe, const Size& size) const;  ///< "1M tokens"
  TrainSettings resolved(const Recipe& recipe, const Size& size) const;
};

/// A point of the curve, and the end of a run, whether it was trained now or before.
struct RunSummary {
  struct Point {
    double tokens, seconds, bits;
  };
  std::vector<Point> curve;                                      ///< of the training text, as logged
  double valid_bits = std::numeric_limits<double>::quiet_NaN();  ///< the last validation's bits per byte
  double accuracy = std::numeric_limits<double>::quiet_NaN();    ///< of a task, the last validation's
  int64_t parameters = 0, tokens = 0, steps = 0;
  double seconds = 0, work = 0, tokens_per_second = 0;
  std::string state_note, warning;
  bool interrupted = false;
  int exit_status = 0;
};

/// `resolve` of a recipe that is to learn this corpus: images and tasks decide the vocabulary and the context of the
/// size.
std::pair<Recipe, Size> resolve_for(const Corpus& corpus, const std::string& recipe, const TrainingFlags& flags);

/// Turns the option that decides the bytes of the member's state, until they and `budget` parameters (none when "") are
/// met; does nothing without --state-budget.
void meet_state_budget(Recipe& recipe, Size& size, const TrainingFlags& flags, const std::string& budget);

/// Refuses what `train_member` would refuse, without training or writing anything.
void check_plan(const Recipe& recipe, const Size& size, const Corpus& corpus, const TrainingFlags& flags);

/// Trains into flags.out; `resume`: goes on with what is there, and does nothing when it is finished.
RunSummary train_member(const Recipe& recipe, const Size& size, const Corpus& corpus, const TrainingFlags& flags,
                        bool resume);

}  // namespace kinfolk
