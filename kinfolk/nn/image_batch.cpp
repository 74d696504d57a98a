#include "kinfolk/nn/image_batch.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Batch image_batch(std::span<const uint8_t> images, const ImageGrid& grid, int64_t levels) {
  const auto order = grid.order();
  const auto pixels = static_cast<size_t>(grid.pixels());
  if (pixels == 0 || images.size() % pixels != 0) {
    fail("[images] expected whole images of ", pixels, " pixels; found ", images.size(), " pixels");
  }
  const std::vector<int64_t> shape = {static_cast<int64_t>(images.size() / pixels), grid.pixels()};
  const Tensor tokens = at::empty(shape, at::kLong), target = at::empty(shape, at::kLong);
  auto* token = tokens.data_ptr<int64_t>();
  auto* next = target.data_ptr<int64_t>();
  for (size_t begin = 0; begin < images.size(); begin += pixels) {
    int64_t before = levels;
    for (const int64_t raster : order) {
      *token++ = before;
      *next++ = before = images[begin + static_cast<size_t>(raster)];
      if (before >= levels) fail("[images] expected levels below ", levels, "; found ", before);
    }
  }
  return {tokens, {{"target", target}}};
}

}  // namespace kinfolk
