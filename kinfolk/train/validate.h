// Bits per byte of a text, or per pixel of images, while a model is trained.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "kinfolk/objective/objective.h"
#include "kinfolk/train/data/bytes.h"
#include "kinfolk/train/settings.h"

namespace kinfolk {

struct Validation {
  double loss = 0;                                             ///< nats per target
  double bits = 0;                                             ///< loss / ln 2
  int64_t tokens = 0;                                          ///< targets
  double accuracy = std::numeric_limits<double>::quiet_NaN();  ///< of a task: the share of its answers that are right
};

/// Reads at most `eval_tokens` tokens in up to `lanes` lanes, in calls of `length`: members that carry state carry it
/// from call to call, others start each call fresh. Of images and examples of a task whole ones, from the first on,
/// each fresh. Repeats bit for bit. Nothing when `stop` says so in between.
std::optional<Validation> validate(Model& model, Objective& objective, const Corpus& corpus,
                                   const TrainSettings& settings, const std::function<bool()>& stop = {});

}  // namespace kinfolk
