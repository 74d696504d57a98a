// generate --images: what a run that was trained on images draws, as a picture.
#pragma once
#include <cstdint>
#include <string>

#include "kinfolk/eval/sampler.h"
#include "kinfolk/train/checkpoint.h"

namespace kinfolk {

struct ImageFlags {
  int64_t count = 0;
  std::string out, complete;  ///< a file, its end says its kind; images whose upper halves are kept
  bool complete_given = false, json = false, quiet = false;
};

/// Refuses a run of text, and an --out that is no .svg or .pgm, before anything is drawn.
void check_images(const ImageFlags& flags);
/// Draws, and writes the picture to --out, else to standard output as blocks or, with --json, as numbers.
void draw_picture(const LoadedRun& run, const ImageFlags& flags, const SamplerOptions& sampler, int& status);

}  // namespace kinfolk
