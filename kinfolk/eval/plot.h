// Charts as self-contained SVG text: no script, no font, no identifier, so that many fit on one page.
// Text and lines take the page's own colour (currentColor); the eight series colours (Okabe and Ito) can be told apart
// by colour-blind readers on light and on dark ground, and each series has its own mark besides.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace kinfolk {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

struct ChartPoint {
  double x = 0, y = 0;
  double low = kNothing, high = kNothing;  // an error bar, or one slice of a band
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // in the order of x; a point that is not finite is skipped
  int64_t colour = -1;             // of the palette; -1 = by its place
  bool band = false;               // low..high as a band instead of error bars
  bool aside = false;              // dotted, without marks or a place in the legend: what was not measured
};

struct ChartLevel {  // a dashed line across the chart
  std::string name;
  double value = 0;
};

struct LineChart {
  std::string title, x_label, y_label;
  std::vector<ChartSeries> series;
  std::vector<ChartLevel> levels;    // horizontal; they do not widen the range by more than half
  std::vector<ChartLevel> uprights;  // vertical, e.g. the trained length
  bool log_x = false, log_y = false;
  std::optional<double> y_low, y_high;  // what lies beyond is clipped
  bool from_zero = false;               // y starts at 0
  int64_t width = 560, height = 340;
};

struct BarChart {
  std::string title, label;
  struct Bar {
    std::string name;
    double value = 0;
    double low = kNothing, high = kNothing;
    int64_t colour = -1;
  };
  std::vector<Bar> bars;
  int64_t width = 560;
};

/// Who sees whom: row = the one that looks, column = the one seen. Weights from 0 (unseen) to 1; pictures of more than
/// 128 a side are averaged down.
struct MatrixPicture {
  std::string title;
  int64_t rows = 0, columns = 0;
  std::vector<float> weights;  // rows x columns
  int64_t width = 240;
};

std::string svg(const LineChart& chart);
std::string svg(const BarChart& chart);
/// Throws Error when `weights` is not rows x columns.
std::string svg(const MatrixPicture& picture);

/// A chart as a file of its own, on a white ground: on a page it takes the page's colours.
std::string standing_alone(std::string chart);

/// "#rrggbb" of the palette, around in a circle.
std::string palette_colour(int64_t index);

/// Ticks at 1, 2 or 5 times a power of ten, about `count` of them, all within [low, high].
std::vector<double> nice_ticks(double low, double high, int64_t count);

/// At most `count` points: neighbours averaged, the outermost of low and high kept.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points, int64_t count);

}  // namespace kinfolk
