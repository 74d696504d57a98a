#include "kinfolk/eval/picture.h"

#include <algorithm>
#include <cmath>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"

namespace kinfolk {
namespace {

/// All images as one sheet of pixels, -1 where there is a gap.
struct Sheet {
  int64_t rows = 0, columns = 0;
  std::vector<int> cells;
  int at(int64_t row, int64_t column) const { return cells[static_cast<size_t>(row * columns + column)]; }
};

Sheet sheet_of(const Picture& p) {
  const int64_t each = p.rows * p.columns;
  if (p.rows < 1 || p.columns < 1 || p.levels < 2 || p.across < 1 || p.group < 1 ||
      static_cast<int64_t>(p.pixels.size()) % each != 0) {
    fail("[picture] expected whole images of ", p.rows, " x ", p.columns, " pixels; found ", p.pixels.size(),
         " pixels");
  }
  const int64_t count = static_cast<int64_t>(p.pixels.size()) / each,
                across = std::min(p.across, std::max<int64_t>(count, 1));
  const int64_t down = (count + across - 1) / across;
  const auto left = [&](int64_t i) { return i * (p.columns + 1) + i / p.group * (p.group > 1 ? 2 : 0); };
  Sheet out;
  out.rows = std::max<int64_t>(0, down * (p.rows + 1) - 1);
  out.columns = left(across - 1) + p.columns;
  out.cells.assign(static_cast<size_t>(out.rows * out.columns), -1);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t y = 0; y < p.rows; ++y)
      for (int64_t x = 0; x < p.columns; ++x) {
        const int64_t row = i / across * (p.rows + 1) + y, column = left(i % across) + x;
        const int level = p.pixels[static_cast<size_t>(i * each + y * p.columns + x)];
        if (level >= p.levels) fail("[picture] expected levels below ", p.levels, "; found ", level);
        out.cells[static_cast<size_t>(row * out.columns + column)] = level;
      }
  return out;
}

int grey(int level, int64_t levels) {
  return static_cast<int>(std::lround(255.0 * level / static_cast<double>(levels - 1)));
}

}  // namespace

std::string svg(const Picture& picture, int64_t scale) {
  const Sheet sheet = sheet_of(picture);
  std::vector<std::string> paths(static_cast<size_t>(picture.levels));
  for (int64_t row = 0; row < sheet.rows; ++row)
    for (int64_t column = 0; column < sheet.columns;) {
      const int level = sheet.at(row, column);
      const int64_t begin = column;
      while (column < sheet.columns && sheet.at(row, column) == level) ++column;
      if (level < 0) continue;
      paths[static_cast<size_t>(level)] += text("M", begin, " ", row, "h", column - begin, "v1h-", column - begin, "z");
    }
  std::string out = text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", (sheet.columns + 2) * scale,
                         "\" height=\"", (sheet.rows + 2) * scale, "\" viewBox=\"-1 -1 ", sheet.columns + 2, " ",
                         sheet.rows + 2, "\" role=\"img\" aria-label=\"", escape(picture.title),
                         "\" shape-rendering=\"crispEdges\">\n<rect x=\"-1\" y=\"-1\" width=\"", sheet.columns + 2,
                         "\" height=\"", sheet.rows + 2, "\" fill=\"#446\"/>\n");
  for (size_t level = 0; level < paths.size(); ++level) {
    if (paths[level].empty()) continue;
    const int value = grey(static_cast<int>(level), picture.levels);
    out += text("<path fill=\"rgb(", value, ",", value, ",", value, ")\" d=\"", paths[level], "\"/>\n");
  }
  return out + "</svg>\n";
}

std::string pgm(const Picture& picture, int64_t scale) {
  if (scale < 1) fail("[picture.scale] expected at least 1; found ", scale);
  const Sheet sheet = sheet_of(picture);
  std::string out = text("P5\n", sheet.columns * scale, " ", sheet.rows * scale, "\n255\n");
  for (int64_t row = 0; row < sheet.rows; ++row) {
    std::string line;
    for (int64_t column = 0; column < sheet.columns; ++column) {
      const int level = sheet.at(row, column);
      line.append(static_cast<size_t>(scale), static_cast<char>(level < 0 ? 80 : grey(level, picture.levels)));
    }
    for (int64_t times = 0; times < scale; ++times) out += line;
  }
  return out;
}

std::string blocks(const Picture& picture) {
  static const char* shades[] = {" ", "░", "▒", "▓", "█"};
  const Sheet sheet = sheet_of(picture);
  std::string out;
  for (int64_t row = 0; row < sheet.rows; ++row) {
    std::string line;
    for (int64_t column = 0; column < sheet.columns; ++column) {
      const int level = sheet.at(row, column);
      const char* shade = level < 0 ? " " : shades[std::lround(4.0 * level / static_cast<double>(picture.levels - 1))];
      line += std::string(shade) + (level < 0 && picture.group == 1 ? "" : shade);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace kinfolk
