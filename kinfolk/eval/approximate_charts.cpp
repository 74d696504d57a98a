// The errors of approximations as charts, side by side in one picture.
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/approximate.h"
#include "kinfolk/eval/markup.h"
#include "kinfolk/eval/plot.h"

namespace kinfolk {
namespace {

constexpr int64_t kWidth = 400, kHeight = 320, kGap = 24, kAcross = 2, kTop = 34;
constexpr double kHighest = 1.5;  // errors above it are no approximation

ChartPoint point_of(int64_t value, const ErrorOver& error) {
  ChartPoint point{static_cast<double>(value), error.mean};
  if (error.spread > kHighest) return point;  // a bar across the whole chart says nothing
  point.low = std::max(0., error.mean - error.spread), point.high = error.mean + error.spread;
  return point;
}

LineChart chart_of(const Approximations& found, const std::string& number) {
  LineChart chart;
  chart.x_label = number, chart.y_label = "relative error";
  chart.log_x = true, chart.y_low = 0, chart.y_high = kHighest;
  chart.width = kWidth, chart.height = kHeight;
  std::vector<ChartSeries> to_model;
  for (const auto& row : found.rows) {
    if (row.of->number != number) continue;
    if (chart.series.empty() || chart.series.back().name != row.of->name) {
      chart.series.push_back({row.of->name, {}});
      if (row.of->form == ExactForm::shared || row.of->form == ExactForm::unit) {
        to_model.push_back({row.of->name + ", to the model's attention", {}});
      }
    }
    chart.series.back().points.push_back(point_of(row.value, row.own));
    if (row.of->form == ExactForm::shared || row.of->form == ExactForm::unit) {
      to_model.back().points.push_back(point_of(row.value, row.causal));
    }
  }
  for (const auto& row : found.forms)  // of those that see no later token
    if (row.form == ExactForm::alike && number != "rank") chart.levels.push_back({"all keys alike", row.error.mean});
  chart.series.insert(chart.series.end(), to_model.begin(), to_model.end());
  return chart;
}

/// A chart that is a part of a larger picture stands at (x, y) in its own size.
std::string placed(std::string chart, int64_t x, int64_t y) {
  const std::string open = "<svg ";
  chart.insert(open.size(), text("x=\"", x, "\" y=\"", y, "\" width=\"", kWidth, "\" height=\"", kHeight, "\" "));
  const std::string style = " style=\"";
  if (const size_t at = chart.find(style); at != std::string::npos) {
    chart.erase(at, chart.find('"', at + style.size()) + 1 - at);
  }
  return chart;
}

}  // namespace

std::string approximation_charts(const Approximations& found, const std::string& title) {
  std::vector<std::string> numbers;
  for (const auto& row : found.rows)
    if (std::find(numbers.begin(), numbers.end(), row.of->number) == numbers.end()) numbers.push_back(row.of->number);
  const auto count = static_cast<int64_t>(numbers.size());
  const int64_t across = std::min(count, kAcross), down = (count + kAcross - 1) / std::max<int64_t>(1, kAcross);
  const int64_t width = across * (kWidth + kGap), height = kTop + down * (kHeight + kGap);
  std::string out =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height,
           "\" role=\"img\" font-family=\"system-ui,sans-serif\" font-size=\"14\" fill=\"currentColor\" "
           "style=\"width:100%;max-width:",
           width, "px;height:auto\"><text x=\"0\" y=\"16\" font-weight=\"600\">", escape(title), "</text>");
  for (int64_t n = 0; n < count; ++n) {
    out += placed(svg(chart_of(found, numbers[static_cast<size_t>(n)])), n % kAcross * (kWidth + kGap),
                  kTop + n / kAcross * (kHeight + kGap));
  }
  return standing_alone(out + "</svg>");
}

}  // namespace kinfolk
