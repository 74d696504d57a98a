#include "kinfolk/eval/plot.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Every element is closed in order, attributes are quoted: enough of XML for what we write.
bool well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    if (end == std::string::npos || svg.find('<', at + 1) < end) return false;
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else {
      if (count(tag, "\"") % 2 != 0) return false;
      if (tag.back() != '/') open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty();
}

LineChart example() {
  LineChart chart;
  chart.title = "Bits per byte & <length>";
  chart.x_label = "length";
  chart.y_label = "bits";
  chart.log_x = true;
  chart.series = {{"window", {{512, 2.1, 2.0, 2.2}, {1024, 2.0}, {2048, 1.9}}},
                  {"rope \"x\"", {{512, 2.2}, {2048, 3.5}}}};
  chart.levels = {{"order 3", 2.3}};
  chart.uprights = {{"trained", 1024}};
  return chart;
}

TEST(Plot, LineChartIsWellFormedAndComplete) {
  const auto drawn = svg(example());
  EXPECT_TRUE(well_formed(drawn)) << drawn;
  for (const char* part :
       {"Bits per byte &amp; &lt;length&gt;", "rope &quot;x&quot;", ">512<", ">1024<", ">2048<", "order 3", ">trained<",
        "<title>window: 2.1 (2 to 2.2) at 512</title>", "#0072B2", "#D55E00", "currentColor"})
    EXPECT_NE(drawn.find(part), std::string::npos) << part;
  EXPECT_EQ(drawn, svg(example()));
}

TEST(Plot, PointsThatAreNotFiniteAreSkipped) {
  auto chart = example();
  const auto before = count(svg(chart), "<title>window: ");
  for (double odd : {kNothing, HUGE_VAL, -HUGE_VAL}) {
    chart.series[0].points.push_back({odd, 2});
    chart.series[0].points.push_back({1024, odd, odd, 2});
    chart.series[0].points[0].high = odd;
    chart.levels.push_back({"odd", odd});
    chart.uprights.push_back({"odd", odd});
  }
  chart.series[0].points.push_back({0, 2});  // no logarithm
  const auto drawn = svg(chart);
  EXPECT_EQ(count(drawn, "<title>window: "), before);
  EXPECT_EQ(drawn.find("nan"), std::string::npos);
  EXPECT_EQ(drawn.find("inf"), std::string::npos);
  EXPECT_EQ(drawn.find("\u2013"), std::string::npos);
  EXPECT_TRUE(well_formed(drawn));
}

TEST(Plot, EmptyAndDegenerateChartsSaySo) {
  LineChart chart;
  EXPECT_NE(svg(chart).find("no data"), std::string::npos);
  chart.series = {{"one", {{1, 5}}}};
  for (bool log : {false, true}) {
    chart.log_x = chart.log_y = log;
    const auto drawn = svg(chart);
    EXPECT_TRUE(well_formed(drawn));
    EXPECT_EQ(drawn.find("nan"), std::string::npos);
  }
  EXPECT_NE(svg(BarChart{}).find("no data"), std::string::npos);
}

TEST(Plot, LongCurvesAreThinned) {
  LineChart chart;
  chart.series = {{"long", {}}};
  for (int i = 0; i < 100000; ++i) chart.series[0].points.push_back({double(i), std::sin(i * 1e-4)});
  EXPECT_LT(svg(chart).size(), 100000u);
  std::vector<ChartPoint> points = {{0, 0, -1, 1}, {1, 1, 0, 5}, {2, 2}, {3, 3}};
  const auto two = thinned(points, 2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_DOUBLE_EQ(two[0].x, 0.5);
  EXPECT_DOUBLE_EQ(two[0].high, 5);
  EXPECT_DOUBLE_EQ(two[1].y, 2.5);
}

TEST(Plot, WhatLiesBeyondTheRangeStaysDrawable) {
  auto chart = example();
  chart.y_low = 0, chart.y_high = 3;
  chart.series[0].points.push_back({2048, 1e300});
  const auto drawn = svg(chart);
  EXPECT_NE(drawn.find("-100000"), std::string::npos);
  EXPECT_TRUE(well_formed(drawn));
}

TEST(Plot, NiceTicks) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(95, 310, 4), (std::vector<double>{100, 150, 200, 250, 300}));
  EXPECT_TRUE(nice_ticks(1, 1, 5).empty());
  EXPECT_TRUE(nice_ticks(NAN, 1, 5).empty());
  for (double size : {1e-9, 0.3, 7., 1e12}) {
    const auto found = nice_ticks(size, 2.37 * size, 5);
    EXPECT_GE(found.size(), 3u);
    EXPECT_LE(found.size(), 9u);
  }
}

TEST(Plot, BarsGrowWithTheirValues) {
  BarChart chart;
  chart.bars = {{"small", 1}, {"large <", 4, 3, 5}, {"not a number", NAN}};
  const auto drawn = svg(chart);
  EXPECT_TRUE(well_formed(drawn));
  EXPECT_EQ(count(drawn, "<rect"), 2);
  EXPECT_EQ(drawn.find("not a number"), std::string::npos);
}

TEST(Plot, MatrixPictureMergesRunsAndChecksSizes) {
  MatrixPicture picture{"causal", 3, 3, {1, 0, 0, 1, 1, 0, 1, 1, 1}};
  const auto drawn = svg(picture);
  EXPECT_TRUE(well_formed(drawn));
  EXPECT_NE(drawn.find("M0 0h1v1h-1zM0 1h2v1h-2zM0 2h3v1h-3z"), std::string::npos) << drawn;
  picture.weights.pop_back();
  EXPECT_THROW(svg(picture), Error);
  EXPECT_NE(svg(MatrixPicture{}).find("no data"), std::string::npos);
}

TEST(Plot, LargeMatrixIsAveragedDown) {
  MatrixPicture picture{"large", 1000, 1000, std::vector<float>(1000000, 0.5f)};
  picture.weights[0] = NAN;
  const auto drawn = svg(picture);
  EXPECT_LT(drawn.size(), 20000u);
  EXPECT_NE(drawn.find("opacity=\"0.5\""), std::string::npos);
}

TEST(Plot, StandsAloneOnWhite) {
  LineChart chart;
  chart.series = {{"one", {{1, 2}, {2, 3}}}};
  EXPECT_EQ(svg(chart).find("background"), std::string::npos);
  EXPECT_NE(standing_alone(svg(chart)).find("style=\"background:#fff;color:#1c2330;"), std::string::npos);
}

}  // namespace
}  // namespace kinfolk
