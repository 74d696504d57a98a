#include <algorithm>
#include <array>
#include <cmath>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"
#include "kinfolk/eval/plot.h"

namespace kinfolk {
namespace {

constexpr int64_t kMostCells = 128, kShades = 8;

/// Means over equal boxes, so that neither side has more than kMostCells.
MatrixPicture reduced(const MatrixPicture& picture) {
  MatrixPicture out = picture;
  out.rows = std::min(picture.rows, kMostCells);
  out.columns = std::min(picture.columns, kMostCells);
  out.weights.assign(static_cast<size_t>(out.rows * out.columns), 0);
  for (int64_t r = 0; r < out.rows; ++r)
    for (int64_t c = 0; c < out.columns; ++c) {
      double sum = 0;
      const int64_t top = r * picture.rows / out.rows, bottom = (r + 1) * picture.rows / out.rows;
      const int64_t left = c * picture.columns / out.columns, right = (c + 1) * picture.columns / out.columns;
      for (int64_t i = top; i < bottom; ++i)
        for (int64_t j = left; j < right; ++j) {
          const float weight = picture.weights[static_cast<size_t>(i * picture.columns + j)];
          if (std::isfinite(weight)) sum += std::clamp(weight, 0.f, 1.f);
        }
      out.weights[static_cast<size_t>(r * out.columns + c)] =
          static_cast<float>(sum / static_cast<double>((bottom - top) * (right - left)));
    }
  return out;
}

}  // namespace

std::string svg(const MatrixPicture& picture) {
  if (picture.rows < 0 || picture.columns < 0 ||
      picture.weights.size() != static_cast<size_t>(picture.rows) * static_cast<size_t>(picture.columns))
    fail("[plot.matrix] expected ", picture.rows, " x ", picture.columns, " weights; found ", picture.weights.size());
  const bool empty = picture.rows == 0 || picture.columns == 0;
  const MatrixPicture cells = empty ? picture : reduced(picture);
  const double cell = empty ? 0 : static_cast<double>(picture.width) / static_cast<double>(cells.columns);
  const double top = picture.title.empty() ? 0 : 26, height = cell * static_cast<double>(cells.rows);
  std::string out =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", picture.width, " ",
           number_text(top + std::max(height, 20.), 1), "\" role=\"img\" aria-label=\"", escape(picture.title),
           "\" font-family=\"system-ui,sans-serif\" font-size=\"13\" fill=\"currentColor\" style=\"width:100%;"
           "max-width:",
           picture.width, "px;height:auto\">");
  if (top > 0) out += text("<text x=\"0\" y=\"16\" font-weight=\"600\">", escape(picture.title), "</text>");
  if (empty) return out + text("<text x=\"0\" y=\"", top + 14, "\">no data</text></svg>");
  out += text("<rect x=\"0\" y=\"", top, "\" width=\"", picture.width, "\" height=\"", number_text(height, 2),
              "\" fill-opacity=\".08\"/>");
  // One path a shade, one rectangle a run of equal cells: a few KB for 128 x 128 cells.
  std::array<std::string, kShades + 1> paths;
  for (int64_t r = 0; r < cells.rows; ++r) {
    const auto shade = [&](int64_t c) {
      const float weight = cells.weights[static_cast<size_t>(r * cells.columns + c)];
      return weight <= 0 ? int64_t(0) : std::clamp<int64_t>(std::lround(weight * kShades), 1, kShades);
    };
    for (int64_t c = 0; c < cells.columns;) {
      const int64_t kind = shade(c), begin = c;
      while (c < cells.columns && shade(c) == kind) ++c;
      if (kind > 0)
        paths[static_cast<size_t>(kind)] += text("M", begin, " ", r, "h", c - begin, "v1h-", c - begin, "z");
    }
  }
  out += text("<g transform=\"translate(0 ", top, ") scale(", number_text(cell, 4), ")\" fill=\"", palette_colour(0),
              "\" stroke=\"", palette_colour(0), "\" stroke-width=\".04\">");
  for (int64_t kind = 1; kind <= kShades; ++kind)
    if (const auto& path = paths[static_cast<size_t>(kind)]; !path.empty())
      out += text("<path opacity=\"", number_text(static_cast<double>(kind) / kShades, 3), "\" d=\"", path, "\"/>");
  return out + "</g></svg>";
}

}  // namespace kinfolk
