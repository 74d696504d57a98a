// Where batches come from: the one thing that training wants of its data.
#pragma once
#include <cstdint>
#include <memory>

#include "kinfolk/core/batch.h"
#include "kinfolk/nn/image_grid.h"
#include "kinfolk/train/data/bytes.h"

namespace kinfolk {

struct TrainSettings;

struct Source {
  virtual ~Source() = default;
  /// What every lane reads from `position` (tokens that each has read) on: tokens int64 [B, L], fact "target" [B, L]
  /// (-100: none), and "segment" where borders count. The position alone decides.
  virtual Batch at(int64_t position, int64_t length) const = 0;
  /// Every call holds whole documents, one a lane: `length` is always the same, and nothing is carried from call to
  /// call.
  virtual bool whole() const = 0;
};

/// The lanes of a text, the examples of a task, or the images of a corpus of images, in the order in which the member
/// lays out its pixels.
/// Throws UsageError when the corpus is too small or of images of another size than the member's.
std::unique_ptr<Source> training_source(const Corpus& corpus, const TrainSettings& settings, const ImageGrid& grid);

}  // namespace kinfolk
