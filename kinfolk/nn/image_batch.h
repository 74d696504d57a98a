// Images as batches: behind a start token, in the order of a member.
#pragma once
#include <cstdint>
#include <span>

#include "kinfolk/core/batch.h"
#include "kinfolk/nn/image_grid.h"

namespace kinfolk {

/// One row an image of `images`, grey levels [N, rows, columns]: tokens [N, pixels], the start token (the number
/// `levels`) and then all pixels but the last; fact "target" [N, pixels], all pixels; both in the order of the grid.
/// Throws Error for a part of an image and for levels that are too high.
Batch image_batch(std::span<const uint8_t> images, const ImageGrid& grid, int64_t levels);

}  // namespace kinfolk
