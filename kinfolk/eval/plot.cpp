#include "kinfolk/eval/plot.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"

namespace kinfolk {
namespace {

constexpr const char* kPalette[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                    "#E69F00", "#56B4E9", "#8172B3", "#7F7F7F"};
constexpr int64_t kColours = std::size(kPalette);
constexpr int64_t kMostPoints = 400, kMostMarks = 40;
constexpr double kLetter = 6.4;  // mean width of a letter at 12 pixels
constexpr double kTop = 40, kBottom = 46, kLeft = 62, kRight = 16;

/// A coordinate; what is clipped anyway stays a number that a browser can hold.
std::string px(double value) { return number_text(std::clamp(value, -1e5, 1e5), 1); }

std::string attribute(const char* name, const std::string& value) { return text(" ", name, "=\"", value, "\""); }

std::string write(double x, double y, const std::string& words, const char* anchor, const std::string& more = "") {
  return text("<text", attribute("x", px(x)), attribute("y", px(y)), attribute("text-anchor", anchor), more, ">",
              escape(words), "</text>");
}

std::string stroke(double x1, double y1, double x2, double y2, const std::string& more) {
  return text("<path", attribute("d", text("M", px(x1), " ", px(y1), "L", px(x2), " ", px(y2))), more, "/>");
}

/// Small words over lines: an edge in the colour of the page's card keeps them readable.
constexpr auto kOverLines = " font-size=\"11\" style=\"paint-order:stroke;stroke:var(--card,#fff);stroke-width:3px\"";

std::string open_svg(int64_t width, double height, const std::string& title) {
  return text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", px(height), "\"",
      attribute("aria-label", escape(title)),
      " role=\"img\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"currentColor\" style=\"width:100%;"
      "max-width:",
      width, "px;height:auto\">",
      title.empty() ? "" : write(0, 16, title, "start", " font-size=\"14\" font-weight=\"600\""));
}

/// A mark of its own for every series: circle, square, triangle, diamond.
std::string mark(double x, double y, int64_t kind, const std::string& colour, const std::string& hover) {
  const double r = 3.6;
  std::string path;
  const auto at = [](double a, double b) { return text(px(a), " ", px(b)); };
  switch (kind % 4) {
    case 0:
      path = text("M", at(x - r, y), "a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0");
      break;
    case 1:
      path = text("M", at(x - r, y - r), "h7.2v7.2h-7.2");
      break;
    case 2:
      path = text("M", at(x, y - r - 1), "L", at(x + r + 1, y + r), "L", at(x - r - 1, y + r));
      break;
    default:
      path = text("M", at(x, y - r - 1), "L", at(x + r + 1, y), "L", at(x, y + r + 1), "L", at(x - r - 1, y));
  }
  return text("<path d=\"", path, "z\" fill=\"", colour, "\">",
              hover.empty() ? "" : "<title>" + escape(hover) + "</title>", "</path>");
}

/// The second round of the palette is dashed, the third dotted.
const char* dashes(int64_t colour) {
  return colour < kColours ? "" : colour < 2 * kColours ? " stroke-dasharray=\"6 3\"" : " stroke-dasharray=\"2 3\"";
}

struct Axis {
  double low = 0, high = 1, from = 0, to = 1;  // values and pixels
  bool log = false;
  bool holds(double value) const { return std::isfinite(value) && (!log || value > 0); }
  double scale(double value) const { return log ? std::log10(value) : value; }
  double operator()(double value) const {
    return from + (to - from) * (scale(value) - scale(low)) / (scale(high) - scale(low));
  }
  void widen(double part) {
    if (log) {
      const double more = high > low ? std::pow(high / low, part) : 2;
      low /= more, high *= more;
    } else {
      const double more = high > low ? (high - low) * part : std::max(std::abs(high) * 0.05, 1e-3);
      low -= more, high += more;
    }
  }
};

struct Tick {
  double value;
  std::string label;
};

std::vector<Tick> ticks(const Axis& axis, int64_t count, const std::set<double>& values) {
  std::vector<Tick> found;
  if (!axis.log) {
    const auto nice = nice_ticks(axis.low, axis.high, count);
    const double step = nice.size() > 1 ? nice[1] - nice[0] : 1;
    const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
    for (double value : nice)
      found.push_back({value, std::abs(axis.high) >= 10000 ? count_text(value) : fixed_text(value, digits)});
    return found;
  }
  if (!values.empty() && values.size() <= 12) {  // few distinct values, lengths say: these are the ticks
    for (double value : values) found.push_back({value, count_text(value)});
  } else {
    const bool few = axis.scale(axis.high) - axis.scale(axis.low) > 3;
    for (int power = static_cast<int>(std::floor(std::log10(axis.low))); power <= std::log10(axis.high); ++power)
      for (double factor : {1., 2., 5.}) {
        const double value = factor * std::pow(10., power);
        if (value >= axis.low && value <= axis.high && (!few || factor == 1))
          found.push_back({value, count_text(value)});
      }
  }
  std::vector<Tick> apart;  // labels must not touch
  for (const Tick& tick : found) {
    const double room = kLetter * (static_cast<double>(tick.label.size()) + 2);
    if (apart.empty() || std::abs(axis(tick.value) - axis(apart.back().value)) >= std::min(room, 44.))
      apart.push_back(tick);
  }
  return apart;
}

std::string described(const ChartSeries& series, const ChartPoint& point) {
  std::string words = text(series.name, ": ", number_text(point.y, 4));
  if (std::isfinite(point.low) && std::isfinite(point.high))
    words += text(" (", number_text(point.low, 4), " to ", number_text(point.high, 4), ")");
  return words + " at " + count_text(point.x);
}

struct Drawn {
  const ChartSeries* series;
  std::vector<ChartPoint> points;
  int64_t colour;
};

std::string draw(const Drawn& drawn, const Axis& x, const Axis& y) {
  const std::string colour = palette_colour(drawn.colour);
  std::string out, line, band, back;
  for (const ChartPoint& point : drawn.points) {
    line += text(line.empty() ? "M" : "L", px(x(point.x)), " ", px(y(point.y)));
    if (!y.holds(point.low) || !y.holds(point.high)) continue;
    if (drawn.series->band) {
      band += text(band.empty() ? "M" : "L", px(x(point.x)), " ", px(y(point.high)));
      back = text("L", px(x(point.x)), " ", px(y(point.low))) + back;
    } else {
      const double at = x(point.x), low = y(point.low), high = y(point.high);
      out += text("<path fill=\"none\" stroke=\"", colour, "\" d=\"M", px(at), " ", px(low), "V", px(high), "M",
                  px(at - 4), " ", px(low), "h8M", px(at - 4), " ", px(high), "h8\"/>");
    }
  }
  if (!band.empty()) out += text("<path d=\"", band, back, "z\" fill=\"", colour, "\" fill-opacity=\".18\"/>");
  out +=
      text("<path d=\"", line, "\" fill=\"none\" stroke=\"", colour, "\" stroke-width=\"2\" stroke-linejoin=\"round\"",
           drawn.series->aside ? " stroke-dasharray=\"2 3\"" : dashes(drawn.colour), "><title>",
           escape(drawn.series->name), "</title></path>");
  const bool marks = static_cast<int64_t>(drawn.points.size()) <= kMostMarks && !drawn.series->aside;
  for (const ChartPoint& point : drawn.points) {
    const std::string hover = described(*drawn.series, point);
    if (marks)
      out += mark(x(point.x), y(point.y), drawn.colour, colour, hover);
    else  // unseen, only to hover over
      out += text("<circle cx=\"", px(x(point.x)), "\" cy=\"", px(y(point.y)), "\" r=\"5\" fill-opacity=\"0\"><title>",
                  escape(hover), "</title></circle>");
  }
  return out;
}

/// Entries in rows under the chart; returns its height.
double legend(const std::vector<Drawn>& drawn, double top, double width, std::string& out) {
  double x = kLeft, y = top;
  for (const Drawn& entry : drawn) {
    if (entry.series->aside) continue;
    const double size = 26 + kLetter * static_cast<double>(valid_utf8(entry.series->name).size()) + 14;
    if (x > kLeft && x + size > width) x = kLeft, y += 18;
    const std::string colour = palette_colour(entry.colour);
    out += stroke(x, y, x + 18, y, text(" stroke=\"", colour, "\" stroke-width=\"2\"", dashes(entry.colour)));
    out += mark(x + 9, y, entry.colour, colour, "") + write(x + 24, y + 4, entry.series->name, "start");
    x += size;
  }
  return drawn.empty() ? 0 : y - top + 18;
}

}  // namespace

std::string standing_alone(std::string chart) {
  const std::string style = "style=\"";
  if (const size_t at = chart.find(style); at != std::string::npos) {
    chart.insert(at + style.size(), "background:#fff;color:#1c2330;");
  }
  return chart;
}

std::string palette_colour(int64_t index) { return kPalette[((index % kColours) + kColours) % kColours]; }

std::vector<double> nice_ticks(double low, double high, int64_t count) {
  if (!std::isfinite(low) || !std::isfinite(high) || high <= low || count < 1) return {};
  const double rough = (high - low) / static_cast<double>(count);
  const double power = std::pow(10., std::floor(std::log10(rough)));
  const double factor = rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10;
  const double step = factor * power, first = std::ceil(low / step - 1e-9);
  std::vector<double> found;
  for (double k = first; k * step <= high + step * 1e-9 && found.size() < 100; ++k) found.push_back(k * step);
  return found;
}

std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points, int64_t count) {
  const auto size = static_cast<int64_t>(points.size());
  if (size <= count || count < 1) return points;
  std::vector<ChartPoint> out;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * size / count, end = (i + 1) * size / count;
    ChartPoint mean{0, 0, kNothing, kNothing};
    for (int64_t k = begin; k < end; ++k) {
      const ChartPoint& point = points[static_cast<size_t>(k)];
      mean.x += point.x / static_cast<double>(end - begin);
      mean.y += point.y / static_cast<double>(end - begin);
      mean.low = std::fmin(mean.low, point.low);  // fmin and fmax pass NaN by
      mean.high = std::fmax(mean.high, point.high);
    }
    out.push_back(mean);
  }
  return out;
}

std::string svg(const LineChart& chart) {
  Axis x, y;
  x.log = chart.log_x, y.log = chart.log_y;
  x.low = y.low = HUGE_VAL, x.high = y.high = -HUGE_VAL;
  std::vector<Drawn> drawn;
  std::set<double> values;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    Drawn entry{&series, {}, series.colour >= 0 ? series.colour : static_cast<int64_t>(i)};
    for (const ChartPoint& point : series.points)
      if (x.holds(point.x) && y.holds(point.y)) entry.points.push_back(point);
    if (entry.points.empty()) continue;
    entry.points = thinned(entry.points, kMostPoints);
    for (const ChartPoint& point : entry.points) {
      x.low = std::min(x.low, point.x), x.high = std::max(x.high, point.x);
      for (double value : {point.y, point.low, point.high})
        if (y.holds(value)) y.low = std::min(y.low, value), y.high = std::max(y.high, value);
      if (values.size() <= 12) values.insert(point.x);
    }
    drawn.push_back(std::move(entry));
  }
  std::string out = open_svg(chart.width, static_cast<double>(chart.height), chart.title);
  if (drawn.empty()) return out + write(kLeft, static_cast<double>(chart.height) / 2, "no data", "start") + "</svg>";

  const double data_low = y.low, data_high = y.high;
  for (const ChartLevel& level : chart.levels)
    if (!y.log && std::isfinite(level.value)) {
      y.low = std::min(y.low, std::max(level.value, data_low - (data_high - data_low) / 2));
      y.high = std::max(y.high, std::min(level.value, data_high + (data_high - data_low) / 2));
    }
  if (chart.from_zero && !y.log) y.low = std::min(y.low, 0.);
  if (x.high == x.low || x.log) x.widen(0.03);
  if (chart.y_high && y.holds(*chart.y_high) && *chart.y_high > y.low) y.high = *chart.y_high;
  const double floor = y.low;
  y.widen(0.05);
  if (chart.from_zero && !y.log && floor == 0) y.low = 0;
  if (chart.y_low && y.holds(*chart.y_low)) y.low = *chart.y_low;
  if (chart.y_high && y.holds(*chart.y_high)) y.high = *chart.y_high;
  if (!(y.high > y.low)) y.high = y.low + (y.log ? y.low : 1);

  std::string names;
  const double width = static_cast<double>(chart.width), right = width - kRight;
  const double legend_height = legend(drawn, 0, width, names);
  const double bottom = static_cast<double>(chart.height) - kBottom - legend_height;
  x.from = kLeft, x.to = right, y.from = bottom, y.to = kTop;
  for (const Tick& tick : ticks(y, 5, {})) {
    out += stroke(kLeft, y(tick.value), right, y(tick.value), " stroke=\"currentColor\" stroke-opacity=\".15\"");
    out += write(kLeft - 6, y(tick.value) + 4, tick.label, "end");
  }
  for (const Tick& tick : ticks(x, 6, values)) {
    out += stroke(x(tick.value), bottom, x(tick.value), bottom + 4, " stroke=\"currentColor\"");
    out += write(x(tick.value), bottom + 18, tick.label, "middle");
  }
  out += stroke(kLeft, bottom, right, bottom, " stroke=\"currentColor\"");
  out += write((kLeft + right) / 2, bottom + 36, chart.x_label, "middle");
  out += write(0, 32, chart.y_label, "start", " fill-opacity=\".75\"");
  std::string labels;  // on top of the lines
  for (const ChartLevel& level : chart.uprights) {
    if (!x.holds(level.value) || level.value < x.low || level.value > x.high) continue;
    const double at = x(level.value);
    const bool near_edge = at + kLetter * static_cast<double>(level.name.size()) > right;
    out += stroke(at, kTop, at, bottom, " stroke=\"currentColor\" stroke-opacity=\".5\" stroke-dasharray=\"2 3\"");
    labels += write(at + (near_edge ? -4 : 4), kTop + 10, level.name, near_edge ? "end" : "start", kOverLines);
  }
  double last_label = -HUGE_VAL;
  auto levels = chart.levels;
  std::sort(levels.begin(), levels.end(), [](const ChartLevel& a, const ChartLevel& b) { return a.value < b.value; });
  for (const ChartLevel& level : levels) {
    if (!y.holds(level.value) || level.value < y.low || level.value > y.high) continue;
    const double at = y(level.value);
    out += stroke(kLeft, at, right, at, " stroke=\"currentColor\" stroke-opacity=\".5\" stroke-dasharray=\"5 4\"");
    if (std::abs(at - last_label) > 12) labels += write(right, at - 4, level.name, "end", kOverLines);
    last_label = at;
  }
  // An inner svg clips what leaves the frame; 6 pixels of room keep whole marks at its edges.
  out += text("<svg x=\"", px(kLeft - 6), "\" y=\"", px(kTop - 6), "\" width=\"", px(right - kLeft + 12),
              "\" height=\"", px(bottom - kTop + 12), "\" viewBox=\"", px(kLeft - 6), " ", px(kTop - 6), " ",
              px(right - kLeft + 12), " ", px(bottom - kTop + 12), "\">");
  for (const Drawn& entry : drawn) out += draw(entry, x, y);
  out += "</svg>";
  out += labels;
  legend(drawn, bottom + kBottom + 8, width, out);
  return out + "</svg>";
}

std::string svg(const BarChart& chart) {
  constexpr double kRow = 24;
  double longest = 0, name_width = 40;
  std::vector<BarChart::Bar> bars;
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    BarChart::Bar bar = chart.bars[i];
    if (!std::isfinite(bar.value) || bar.value < 0) continue;
    if (bar.colour < 0) bar.colour = static_cast<int64_t>(i);
    longest = std::max({longest, bar.value, std::isfinite(bar.high) ? bar.high : 0});
    name_width = std::max(name_width, kLetter * static_cast<double>(valid_utf8(bar.name).size()) + 12);
    bars.push_back(bar);
  }
  name_width = std::min(name_width, static_cast<double>(chart.width) / 2);
  const double room = static_cast<double>(chart.width) - name_width - 60;
  const double scale = longest > 0 ? room / longest : 0;
  std::string out =
      open_svg(chart.width, kTop + kRow * static_cast<double>(std::max<size_t>(bars.size(), 1)) + 8, chart.title);
  out += write(0, 32, chart.label, "start", " fill-opacity=\".75\"");
  if (bars.empty()) out += write(0, kTop + 16, "no data", "start");
  double y = kTop;
  for (const auto& bar : bars) {
    const std::string shown = count_text(bar.value);
    out += write(name_width - 8, y + 16, bar.name, "end");
    out += text("<rect x=\"", px(name_width), "\" y=\"", px(y + 3), "\" width=\"", px(std::max(bar.value * scale, 1.)),
                "\" height=\"17\" rx=\"2\" fill=\"", palette_colour(bar.colour), "\"><title>", escape(bar.name), ": ",
                shown, "</title></rect>");
    double end = bar.value;
    if (std::isfinite(bar.low) && std::isfinite(bar.high)) {
      out += stroke(name_width + std::max(bar.low, 0.) * scale, y + 11.5, name_width + bar.high * scale, y + 11.5,
                    " stroke=\"currentColor\" stroke-width=\"1.5\"");
      end = std::max(end, bar.high);
    }
    out += write(name_width + end * scale + 6, y + 16, shown, "start");
    y += kRow;
  }
  return out + "</svg>";
}

}  // namespace kinfolk
