// Images of grey levels as a picture: SVG, PGM, or blocks on a terminal.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kinfolk {

/// Images side by side, `across` in a row; level 0 is black, the highest white.
struct Picture {
  int64_t rows = 0, columns = 0, levels = 2;  ///< of an image
  std::vector<uint8_t> pixels;                ///< [N, rows, columns]
  int64_t across = 4;
  int64_t group = 1;  ///< a wider gap after so many images
  std::string title;  ///< for readers who do not see it
};

/// One path a level, `scale` units a pixel.
std::string svg(const Picture& picture, int64_t scale = 8);
/// Portable grey map, binary (P5); a pixel is `scale` x `scale`.
std::string pgm(const Picture& picture, int64_t scale = 8);
/// Two characters a pixel, from a space to a full block.
std::string blocks(const Picture& picture);

}  // namespace kinfolk
