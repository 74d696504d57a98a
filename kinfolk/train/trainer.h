// Trains one member on a text, and leaves a run folder from which everything else goes on.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/nn/model.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/data/bytes.h"
#include "kinfolk/train/run_log.h"
#include "kinfolk/train/settings.h"

namespace kinfolk {

struct TrainHooks {
  bool resume = false;  ///< go on with the run in the folder; start it when there is none
  std::string from;     ///< a run or a checkpoint whose tensors it begins with (start_from); empty: none
  bool freeze = false;  ///< with `from`: what is taken from there does not learn
  bool quiet = false;   ///< nothing on stderr
  std::string title;    ///< of the progress bar; empty: "train NAME"
  std::function<void(Model&)> on_model;  ///< once it is made or resumed, before its first step: attach a datastore
  /// Before a text is read, to learn from or to measure on: its own entries of a datastore must not be found.
  std::function<void(Model&, const Text&)> on_text;
  std::function<void(const LogRow&)> on_row;
  std::function<bool(int64_t step)> on_step;  ///< after each step; true: save and end, as the first Ctrl-C does
};

struct TrainResult {
  std::shared_ptr<Model> model;  ///< as it was at the last step, in evaluation mode
  RunRecord record;              ///< with the point where it ended
  int64_t parameters = 0;
  int64_t peak_rss = 0;  ///< bytes, of the process so far
  double tokens_per_second = 0;
  std::vector<LogRow> validations;  ///< of the whole run, resumed parts included
  std::string checkpoint;           ///< path of the last one
  bool finished = false;            ///< the budget is spent
  int signal = 0;                   ///< that ended it early, or 0

  /// 0, or 128 + signal as shells say it, or 1 when a hook ended it.
  int exit_status() const { return finished ? 0 : signal ? 128 + signal : 1; }
};

/// Trains until the budget is spent:
///   tokens    exactly so many (rounded down to a multiple of the lanes: the last step is shorter; of images to
///             whole steps);
///   work      as many whole steps as fit in; a step is 3 x Model::flops (backward counts twice forward);
///   minutes   the step that crosses the limit is the last.
/// Loss of a step = (sum over targets of all parts) / (number of targets) + auxiliary losses weighed likewise, so that
/// `accumulate` changes nothing but memory. A member whose traits say that it carries gets the state of its lanes from
/// step to step, detached; others start each step fresh. A step whose gradient is not finite is skipped (a carried
/// state starts anew); too many in a row end the run. With equal settings and number of threads a run repeats bit for
/// bit, stopped and resumed or not, unless its budget is in minutes.
///
/// Throws UsageError for what cannot work, before anything is written; Error when the run fails. What was saved before
/// stays.
TrainResult train(const Recipe& recipe, const Size& size, const TrainSettings& settings, const Corpus& corpus,
                  const std::string& out, const TrainHooks& hooks = {});

/// Seed of the draws of one part of one step.
uint64_t draw_seed(uint64_t seed, int64_t step, int64_t part);

}  // namespace kinfolk
