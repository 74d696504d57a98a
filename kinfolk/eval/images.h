// Images of grey levels from a model and their bits: every image is read whole, behind a start token.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kinfolk/eval/perplexity.h"
#include "kinfolk/eval/sampler.h"
#include "kinfolk/nn/image_batch.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {

/// Grey levels of images, one image after the other, each row after row: [N, rows, columns]. A model of images has a
/// vocabulary of the levels and, as its last id, the start token.
using Pixels = std::vector<uint8_t>;

/// How a model lays out images of so many rows and columns. Refuses a model of other ones.
ImageGrid grid_of(const Model& model, int64_t rows, int64_t columns);

struct ImageScores {
  int64_t images = 0, pixels = 0;
  double bits = 0;                  ///< per pixel (bits per dimension), mean over all
  double error = 0;                 ///< standard error over images; NaN with one
  std::vector<PositionScore> rows;  ///< bits per pixel of each row: raster indices [from, to)
  double pixels_per_second = 0;
};

/// The first `pixels` pixels in whole images, one image at least; `lanes` images side by side.
ImageScores score_images(Model& model, const Pixels& images, const ImageGrid& grid, int64_t pixels, int64_t lanes,
                         const std::function<void(double share)>& progress = {});

struct ImageBaseline {
  std::string name;
  double bits = 0;  ///< per pixel of the held-out images
};

/// What counts of pixels reach (NgramModel): 1 to 3 pixels before in raster order, and neighbours on the grid.
std::vector<ImageBaseline> image_baselines(const Pixels& train, const Pixels& held_out, int64_t rows, int64_t columns,
                                           int64_t levels);

struct DrawOptions {
  SamplerOptions sampler;  ///< image i is drawn with the seed + i, so that it does not depend on their number
  int64_t count = 16;
  Pixels given = {};  ///< of `count` images, whose first rows are kept; empty: nothing is
  int64_t given_rows = 0;
  /// After each pixel, with the share that is done; false: end there.
  std::function<bool(double share)> progress;
};

/// Images drawn pixel after pixel, all side by side: [count, rows, columns]; empty when `progress` said to end. A pixel
/// that is given is read when its place in the layout of the member comes. Members that do not stream read all pixels
/// again for each.
Pixels draw_images(Model& model, const ImageGrid& grid, const DrawOptions& options);

}  // namespace kinfolk
