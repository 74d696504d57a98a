// Pixels of an image, one after the other, with the place of each on the grid.
#pragma once
#include <string>
#include <vector>

#include "kinfolk/nn/family.h"

namespace kinfolk {

/// table[level] (* sqrt(D)) + the place on the grid of the pixel that comes next: token t of an image stands at the
/// place of pixel t, since the pixels are read one late, behind a start token. Images follow each other: place =
/// position mod (rows * columns).  (Parmar et al. 2018)
///
/// Places of sines: the first half of the width encodes the row, the second the column. Learned: a vector a row plus
/// one a column. The start token is an id like any other: the one above the highest level.
class Image : public Input {
 public:
  struct Options {
    int64_t rows = 8;
    int64_t columns = 8;
    std::string order = "raster";
    int64_t height = 1;
    int64_t width = 1;
    std::string position = "sinusoidal";
    bool scale = true;
    double dropout = -1;
    double base = 10000;
    std::string layout = "interleaved";
    template <class Visit>
    void fields(Visit&& visit) {
      visit("rows", rows, "of an image", at_least(1));
      visit("columns", columns, "of an image", at_least(1));
      visit("order", order, "in which pixels come: row after row, or block after block and row after row in a block",
            one_of({"raster", "block"}));
      visit("height", height, "of a block, in pixels (order block)", at_least(1));
      visit("width", width, "of a block, in pixels (order block)", at_least(1));
      visit("position", position, "what is added to the embedding", one_of({"none", "sinusoidal", "learned"}));
      visit("scale", scale, "multiply embeddings, drawn sqrt(D) smaller, by sqrt(D)");
      visit("dropout", dropout, "share of values dropped in training; -1: the size's", between(-1, 0.95));
      visit("base", base, "longest wavelength / 2 pi of the sines", at_least(1));
      visit("layout", layout, "columns: sine and cosine in turn, or all sines first",
            one_of({"interleaved", "halves"}));
    }
  };
  Image(const Options& options, const Context& context);
  Traits traits() const override;
  Tensor embed(Pass& pass) override;
  Tensor tied() const override { return table_; }
  ImageGrid grid() const override { return grid_; }

  /// Row and column of each position.  int64 [B, L] -> [B, L, 2]
  Tensor place(const Tensor& position) const;

 private:
  std::string path_, kind_, layout_;
  ImageGrid grid_;
  double scale_, dropout_, base_;
  int64_t width_;
  Tensor table_;                // [V, D]
  Tensor row_, column_;         // [rows, D], [columns, D]; undefined: not learned
  std::vector<int64_t> order_;  // the raster index of each place
};

}  // namespace kinfolk
