#include "kinfolk/train/data/images.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/nn/image_batch.h"
#include "kinfolk/train/data/lanes.h"
#include "kinfolk/train/data/recall.h"
#include "kinfolk/train/settings.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void wrong(const std::string& path, const std::string& expected, const std::string& found) {
  refuse("[data] ", path, ": expected ", expected, "; found ", found);
}

std::string shape_text(const Tensor& images) {
  std::string out;
  for (const int64_t size : images.sizes()) out += (out.empty() ? "[" : ", ") + std::to_string(size);
  return (out.empty() ? "[" : out) + "]";
}

int64_t levels_of(const TensorFile& file, const std::string& path) {
  const auto found = file.metadata.find("levels");
  if (found == file.metadata.end()) return 256;
  const std::string& words = found->second;
  const bool digits = !words.empty() && words.size() < 5 && words.find_first_not_of("0123456789") == std::string::npos;
  const int64_t levels = digits ? std::stoll(words) : 0;
  if (levels < 2 || levels > 256) wrong(path, "2 to 256 levels in its metadata", words);
  return levels;
}

/// Documents [begin, end) of a text.
Text some_images(const Text& all, size_t begin, size_t end) {
  Text out;
  const int64_t from = all.documents.at(begin).begin, to = all.documents.at(end - 1).end;
  out.bytes.assign(all.bytes.begin() + from, all.bytes.begin() + to);
  for (size_t i = begin; i < end; ++i)
    out.documents.push_back({"", all.documents[i].begin - from, all.documents[i].end - from});
  return out;
}

std::string form_text(const ImageForm& form) {
  return text(form.rows, " x ", form.columns, " pixels of ", form.levels, " levels");
}

/// The next number of a stream (splitmix64, Steele et al. 2014).
uint64_t next_draw(uint64_t& state) {
  uint64_t hash = state += 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

}  // namespace

bool holds_images(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return fs::exists(fs::path(path) / "train.safetensors", error) ||
           fs::exists(fs::path(path) / "valid.safetensors", error);
  }
  return fs::path(path).extension() == ".safetensors" && fs::exists(path, error);
}

Text read_images(const std::string& path, ImageForm& form) {
  TensorFile file;
  try {
    file = read_tensors(path);
  } catch (const Error& error) {
    const std::string words = error.what();
    refuse(words.rfind("[checkpoint] ", 0) == 0 ? "[data] " + words.substr(13) : "[data] " + words);
  }
  const auto found = file.tensors.find("images");
  if (found == file.tensors.end()) {
    wrong(path, "a tensor named images, U8 [N, rows, columns]",
          file.tensors.empty() ? "none" : text("one named ", file.tensors.begin()->first));
  }
  const Tensor& images = found->second;
  if (images.scalar_type() != at::kByte || images.dim() != 3) {
    wrong(path, "images U8 [N, rows, columns]", text(images.scalar_type(), " ", shape_text(images)));
  }
  if (images.numel() == 0) wrong(path, "at least one image of at least one pixel", shape_text(images));
  form = {images.size(1), images.size(2), levels_of(file, path)};
  Text out;
  const auto* pixels = images.const_data_ptr<uint8_t>();
  out.bytes.assign(pixels, pixels + images.numel());
  for (int64_t i = 0; i < images.size(0); ++i)
    out.documents.push_back({"", i * form.pixels(), (i + 1) * form.pixels()});
  if (const int highest = *std::max_element(out.bytes.begin(), out.bytes.end()); highest >= form.levels) {
    wrong(path, text("levels below ", form.levels, ", as its metadata says"), std::to_string(highest));
  }
  return out;
}

Corpus read_image_corpus(const std::string& path, const std::string& valid_path) {
  Corpus corpus;
  corpus.path = path;
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const auto inside = [&](const std::string& where, const char* name) {
    return fs::is_directory(where, error) ? (fs::path(where) / name).string() : where;
  };
  Text all = read_images(inside(path, "train.safetensors"), corpus.images);
  std::string valid = valid_path;
  if (valid.empty() && folder) valid = path;
  if (!valid.empty()) {
    const std::string file = inside(valid, "valid.safetensors");
    ImageForm form;
    corpus.valid = read_images(file, form);
    if (form != corpus.images) wrong(file, form_text(corpus.images) + ", as those that train", form_text(form));
    corpus.train = std::move(all);
    corpus.split = text("validates on the ", corpus.valid.documents.size(), " images of ", file);
    return corpus;
  }
  const size_t count = all.documents.size(), held = std::max<size_t>(1, count / 20);
  if (count < 2) wrong(path, "at least 2 images, so that one validates", "1");
  corpus.train = some_images(all, 0, count - held);
  corpus.valid = some_images(all, count - held, count);
  corpus.split = text("validates on the last ", held, " of ", count, " images");
  return corpus;
}

void check_form(const ImageForm& trained, const Corpus& corpus, const std::string& path) {
  if (trained == corpus.images) return;
  const auto words = [](const ImageForm& form) { return form.any() ? "images of " + form_text(form) : "a text"; };
  wrong(path, words(trained) + ", as the run was trained on", words(corpus.images));
}

Size size_for(Size size, const ImageForm& form) {
  if (!form.any()) return size;
  size.vocabulary = form.levels + 1;
  size.context = form.pixels();
  return size;
}

ImageGrid layout_of(const ImageForm& form, const ImageGrid& grid) {
  if (!grid.any()) return {form.rows, form.columns};
  if (grid.rows != form.rows || grid.columns != form.columns) {
    refuse("[data] expected images of ", grid.rows, " x ", grid.columns,
           " pixels, the rows and columns of the member; found ", form.rows, " x ", form.columns,
           " (--set let.rows=", form.rows, " --set let.columns=", form.columns, ")");
  }
  return grid;
}

ImageRows::ImageRows(const Text& text, const ImageForm& form, const ImageGrid& grid, int64_t lanes, bool shuffled)
    : text_(text),
      form_(form),
      grid_(layout_of(form, grid)),
      lanes_(lanes),
      count_(static_cast<int64_t>(text.documents.size())),
      shuffled_(shuffled) {
  if (lanes < 1) refuse("[train.lanes] expected at least 1; found ", lanes);
  if (count_ < 1) refuse("[data] expected at least one image; found none");
}

int64_t ImageRows::number(int64_t index) const {
  const int64_t pass = index / count_;
  if (!shuffled_) return index % count_;
  if (pass != pass_) {
    permutation_.resize(static_cast<size_t>(count_));
    std::iota(permutation_.begin(), permutation_.end(), int64_t{0});
    uint64_t state = static_cast<uint64_t>(pass);
    for (size_t left = permutation_.size(); left > 1; --left) {
      std::swap(permutation_[left - 1], permutation_[next_draw(state) % left]);
    }
    pass_ = pass;
  }
  return permutation_[static_cast<size_t>(index % count_)];
}

Batch ImageRows::at(int64_t position, int64_t length) const {
  if (length != form_.pixels() || position % length != 0) {
    fail("[data] expected whole images of ", form_.pixels(), " pixels; found ", length, " pixels from ", position);
  }
  std::vector<int64_t> numbers;
  for (int64_t lane = 0; lane < lanes_; ++lane) numbers.push_back(number(position / length * lanes_ + lane));
  return images(numbers);
}

Batch ImageRows::images(const std::vector<int64_t>& numbers) const {
  std::vector<uint8_t> pixels;
  pixels.reserve(numbers.size() * static_cast<size_t>(form_.pixels()));
  for (const int64_t number : numbers) {
    const auto image = text_.document(static_cast<size_t>(number));
    pixels.insert(pixels.end(), image.begin(), image.end());
  }
  return image_batch(pixels, grid_, form_.levels);
}

std::unique_ptr<Source> training_source(const Corpus& corpus, const TrainSettings& settings, const ImageGrid& grid) {
  if (corpus.recall.any()) return recall_source(corpus.recall, settings);
  if (!corpus.images.any()) {
    return std::make_unique<Lanes>(corpus.train, settings.lanes, settings.length, settings.documents);
  }
  if (settings.length != corpus.images.pixels()) {
    refuse("[train.length] expected ", corpus.images.pixels(), ", the pixels of an image; found ", settings.length);
  }
  if (settings.tokens > 0 && settings.tokens < settings.lanes * settings.length) {
    refuse("[train.tokens] expected at least the ", settings.lanes * settings.length, " pixels of one step; found ",
           settings.tokens);
  }
  return std::make_unique<ImageRows>(corpus.train, corpus.images, grid, settings.lanes, true);
}

}  // namespace kinfolk
