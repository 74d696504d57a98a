#include "cli/generate_images.h"

#include <iostream>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/images.h"
#include "kinfolk/eval/picture.h"
#include "kinfolk/train/data/images.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

constexpr int64_t kMostImages = 10000;

std::string ending(const std::string& path) { return std::filesystem::path(path).extension().string(); }

/// As many held-out images, spread over all that there are.
Pixels images_to_complete(const ImageFlags& flags, const ImageForm& form) {
  if (!holds_images(flags.complete)) {
    refuse(
        "[--complete] expected a .safetensors file of images, or a folder with train.safetensors and "
        "valid.safetensors; found ",
        flags.complete.empty() ? "nothing" : flags.complete);
  }
  const Corpus corpus = read_corpus(flags.complete);
  check_form(form, corpus, flags.complete);
  const auto held = static_cast<int64_t>(corpus.valid.documents.size());
  if (held < flags.count) refuse("[--images] expected at most ", held, ", the held-out images; found ", flags.count);
  Pixels out;
  for (int64_t i = 0; i < flags.count; ++i) {
    const auto image = corpus.valid.document(static_cast<size_t>(i * held / flags.count));
    out.insert(out.end(), image.begin(), image.end());
  }
  return out;
}

void print_numbers(const Pixels& pixels, const ImageForm& form, const Pixels& originals) {
  const auto nested = [&](const Pixels& of) {
    auto images = nlohmann::json::array();
    for (size_t at = 0; at < of.size();) {
      auto image = nlohmann::json::array();
      for (int64_t row = 0; row < form.rows; ++row) {
        image.push_back(std::vector<int>(of.begin() + static_cast<std::ptrdiff_t>(at),
                                         of.begin() + static_cast<std::ptrdiff_t>(at) + form.columns));
        at += static_cast<size_t>(form.columns);
      }
      images.push_back(std::move(image));
    }
    return images;
  };
  nlohmann::ordered_json out = {{"levels", form.levels}, {"images", nested(pixels)}};
  if (!originals.empty()) out["originals"] = nested(originals);
  std::cout << out.dump() << "\n";
}

/// Originals and completions in turn, or the drawn images alone.
Picture picture_of(const Pixels& drawn, const Pixels& originals, const ImageForm& form) {
  Picture picture{form.rows, form.columns, form.levels, {}, 1, 1, "images drawn by the model"};
  const auto count = static_cast<int64_t>(drawn.size()) / form.pixels();
  if (originals.empty()) {
    picture.pixels = drawn;
    picture.across = std::max<int64_t>(1, std::llround(std::ceil(std::sqrt(static_cast<double>(count)))));
    return picture;
  }
  for (size_t at = 0; at < drawn.size(); at += static_cast<size_t>(form.pixels()))
    for (const Pixels* of : {&originals, &drawn}) {
      const auto begin = of->begin() + static_cast<std::ptrdiff_t>(at);
      picture.pixels.insert(picture.pixels.end(), begin, begin + form.pixels());
    }
  picture.across = 2 * std::max<int64_t>(1, std::llround(std::ceil(std::sqrt(static_cast<double>(count) / 2))));
  picture.group = 2;
  picture.title = "pairs of an image and its lower half completed by the model";
  return picture;
}

}  // namespace

void check_images(const ImageFlags& flags) {
  if (flags.count > kMostImages) refuse("[--images] expected at most ", kMostImages, "; found ", flags.count);
  const std::string kind = ending(flags.out);
  if (!flags.out.empty() && kind != ".svg" && kind != ".pgm") {
    refuse("[--out] expected a file that ends in .svg or .pgm; found ", flags.out);
  }
  if (flags.json && !flags.out.empty())
    refuse("[--json] expected no --out, since it prints numbers; found ", flags.out);
}

void draw_picture(const LoadedRun& run, const ImageFlags& flags, const SamplerOptions& sampler, int& status) {
  const ImageForm& form = run.record.images;
  DrawOptions options;
  options.sampler = sampler;
  options.count = flags.count;
  if (flags.complete_given) {
    options.given = images_to_complete(flags, form);
    options.given_rows = form.rows / 2;
  }
  Progress progress("drawing", 1.0);
  options.progress = [&](double share) {
    progress.update(share);
    return !asked_to_stop();
  };
  const auto began = std::chrono::steady_clock::now();
  const Pixels drawn = draw_images(*run.model, grid_of(*run.model, form.rows, form.columns), options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  progress.finish();
  if (drawn.empty()) {
    status = 130;
    return;
  }
  const Picture picture = picture_of(drawn, options.given, form);
  if (flags.json) {
    print_numbers(drawn, form, options.given);
  } else if (flags.out.empty()) {
    std::cout << blocks(picture);
  } else {
    write_file(flags.out, ending(flags.out) == ".svg" ? svg(picture) : pgm(picture));
    std::cout << std::filesystem::absolute(flags.out).lexically_normal().string() << "\n";
  }
  if (flags.quiet) return;
  std::cerr << kinfolk::text(flags.count, flags.count == 1 ? " image" : " images", " of ", form.rows, " x ",
                             form.columns, " pixels at ",
                             human_count(static_cast<double>(drawn.size()) / std::max(seconds, 1e-9)), " pixels/s\n");
}

}  // namespace kinfolk
