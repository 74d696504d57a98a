// Images of grey levels as training data: one image a row, shifted behind a start token.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kinfolk/nn/context.h"
#include "kinfolk/train/data/source.h"

namespace kinfolk {

/// Whether a path means images: a file whose name ends in .safetensors, or a folder with train.safetensors or
/// valid.safetensors in it.
bool holds_images(const std::string& path);

/// A safetensors file with the tensor "images" U8 [N, rows, columns] and, in its metadata, "levels": how many grey
/// levels there are (256 when absent); other tensors are not read. Pixels lie in `bytes` row after row, one document an
/// image. Throws UsageError "[data] PATH: expected ...; found ..." for everything else.
Text read_images(const std::string& path, ImageForm& form);

/// A folder's train.safetensors, and valid.safetensors to measure on; or a file, of which the last 5 % of the images
/// (one at least) validate unless `valid_path` names another.
Corpus read_image_corpus(const std::string& path, const std::string& valid_path = "");

/// Refuses data (read from `path`) of another kind or form than a run was trained on: images where it was text, text
/// where it was images, other rows, columns or levels.
void check_form(const ImageForm& trained, const Corpus& corpus, const std::string& path);

/// The sizes that images decide: a vocabulary of the levels and the start token, a context of one image.
Size size_for(Size size, const ImageForm& form);

/// The layout of these images by a member of this grid (none: row after row). Refuses other rows and columns.
ImageGrid layout_of(const ImageForm& form, const ImageGrid& grid);

/// Images of a text, one a lane: lane b of step s holds the image s * B + b of an endless order in which each pass is
/// another permutation, the same for every member, or of the order of the file when `shuffled` is false (then the last
/// ones begin anew). tokens[0] is the start token, tokens[t] pixel t - 1, target[t] pixel t in the member's layout.
class ImageRows : public Source {
 public:
  /// Holds a reference to `text`.
  ImageRows(const Text& text, const ImageForm& form, const ImageGrid& grid, int64_t lanes, bool shuffled);
  Batch at(int64_t position, int64_t length) const override;
  bool whole() const override { return true; }
  /// The images of these numbers, one a row.
  Batch images(const std::vector<int64_t>& numbers) const;

 private:
  int64_t number(int64_t index) const;  ///< of the image at this place of the endless order

  const Text& text_;
  ImageForm form_;
  ImageGrid grid_;
  int64_t lanes_, count_;
  bool shuffled_;
  mutable int64_t pass_ = -1;  // whose permutation `permutation_` is
  mutable std::vector<int64_t> permutation_;
};

}  // namespace kinfolk
