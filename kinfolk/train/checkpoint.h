// What a run leaves behind, in one safetensors file: weights, optimiser, carried state, and how they came about.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/nn/model.h"
#include "kinfolk/train/data/bytes.h"
#include "kinfolk/train/optim.h"
#include "kinfolk/train/settings.h"

namespace kinfolk {

inline constexpr auto kCheckpointFormat = "kinfolk-1";

/// Where a run stands: with weights, moments and carried state all that it needs to go on as if it had never stopped.
/// Every random draw comes from the seed and the step.
struct RunPoint {
  int64_t step = 0;          ///< optimiser steps taken, skipped ones included
  int64_t tokens = 0;        ///< read, all lanes
  int64_t position = 0;      ///< of every lane in the text (see Lanes)
  double seconds = 0;        ///< of training steps
  double work = 0;           ///< FLOP
  int64_t skipped = 0;       ///< steps whose gradient was not finite
  int64_t bad = 0;           ///< of these, in a row until now
  double window_loss = 0;    ///< sum of losses since the last line of the log
  int64_t window_count = 0;  ///< their targets
  int64_t validated = -1;    ///< step of the last validation
  double last_bits = 0;      ///< its bits per byte
  int64_t best_step = -1;    ///< -1: no validation yet
  double best_bits = 0;
  template <class V>
  void fields(V&& visit) {
    visit("step", step, "");
    visit("tokens", tokens, "");
    visit("position", position, "");
    visit("seconds", seconds, "");
    visit("work", work, "");
    visit("skipped", skipped, "");
    visit("bad", bad, "");
    visit("window_loss", window_loss, "");
    visit("window_count", window_count, "");
    visit("validated", validated, "");
    visit("last_bits", last_bits, "");
    visit("best_step", best_step, "");
    visit("best_bits", best_bits, "");
  }
};

struct RunRecord {
  Recipe recipe;  ///< resolved
  Size size;
  TrainSettings settings;
  RunPoint point;
  std::string data;                      ///< path of the text, for people
  std::string data_split;                ///< how it was divided, in words
  std::string fingerprint;               ///< of the training text
  std::string holds = "all";             ///< "all", or "weights": no optimiser, no state
  std::string version;                   ///< of the program that wrote it
  ImageForm images = {};                 ///< what it was trained on, when not a text
  std::string from = {};                 ///< checkpoint file whose tensors it began with; empty: none
  std::vector<std::string> frozen = {};  ///< weights that did not learn
};

/// Writes atomically: the file appears whole, or the old one stays. `optimiser` null: weights only.
/// Tensors: "model.NAME" weights, "buffer.NAME", "optimiser.first|second|steps.NAME", "state.PART/PATH".
void save_checkpoint(const std::string& path, const Model& model, const AdamW* optimiser,
                     const std::vector<State>& states, RunRecord record);

struct LoadedRun {
  std::shared_ptr<Model> model;  ///< in evaluation mode
  RunRecord record;
  std::string path;  ///< of the checkpoint file
};

/// A run folder (its last checkpoint) or a checkpoint file. `test`: the model with the [at.test] overrides of its
/// recipe. Throws Error "[checkpoint] PATH: expected ...; found ..." for a file that is cut short, foreign, of another
/// format, or that lacks a tensor, has one too many or one of another shape.
/// `sets`: assignments ("layers.0.branches.0.pattern=...") applied to the recipe besides; UsageError where they do not
/// fit.
LoadedRun load_run(const std::string& path, bool test = false, const std::vector<std::string>& sets = {});

/// What a checkpoint file says of its run, without its tensors. Throws Error as `load_run` does.
RunRecord read_record(const std::string& file);

/// The checkpoint file that a path means.
std::string checkpoint_of(const std::string& path);

/// What a resumed run needs besides the model; the three must be of the same model and settings.
struct LoadedTraining {
  LoadedRun run;
  std::map<std::string, at::Tensor> moments;
  std::vector<State> states;  ///< as many as `accumulate`; empty when the member carries none
};
/// `dropout` is that of the resumed run.
LoadedTraining load_training(const std::string& path, double dropout);

}  // namespace kinfolk
