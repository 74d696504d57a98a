#include "kinfolk/eval/scaling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kinfolk {
namespace {

/// seconds and bytes by length, 1024 to `longest` in doublings.
template <class Seconds>
CostCurve curve(const std::string& name, int64_t longest, Seconds&& seconds) {
  CostCurve out{name};
  for (int64_t length = 1024; length <= longest; length *= 2) {
    const double x = static_cast<double>(length);
    out.points.push_back({length, seconds(x), 1000 * x, 3});
  }
  return out;
}

TEST(Scaling, FitsAPowerLawExactly) {
  for (const double exponent : {0.5, 1.0, 1.5, 2.0}) {
    std::vector<std::pair<double, double>> points;
    for (const double x : {1e3, 5e3, 7e3, 1e5}) points.emplace_back(x, 3e-6 * std::pow(x, exponent));
    const PowerLaw law = fit_power(points);
    EXPECT_NEAR(law.exponent, exponent, 1e-12);
    EXPECT_NEAR(law.error, 0, 1e-12);
    EXPECT_EQ(law.points, 4);
    EXPECT_NEAR(law.at(2e6) / (3e-6 * std::pow(2e6, exponent)), 1, 1e-9);
  }
}

/// By hand: log2 x = 0, 1, 2, log2 y = 0, 2, 3: slope 1.5, residuals -1/6, 1/3, -1/6, their squares 1/6, over x's 2.
TEST(Scaling, ErrorIsThatOfLeastSquares) {
  const PowerLaw law = fit_power({{1, 1}, {2, 4}, {4, 8}});
  EXPECT_NEAR(law.exponent, 1.5, 1e-12);
  EXPECT_NEAR(law.error, std::sqrt(1. / 6 / 1 / 2), 1e-12);
}

TEST(Scaling, WhatCannotBeFittedHasNoExponent) {
  EXPECT_TRUE(std::isnan(fit_power({}).exponent));
  EXPECT_TRUE(std::isnan(fit_power({{4, 2}}).exponent));
  EXPECT_TRUE(std::isnan(fit_power({{4, 2}, {4, 3}}).exponent));
  const PowerLaw two = fit_power({{1, 2}, {10, 20}, {100, 0}, {0, 5}});
  EXPECT_EQ(two.points, 2);
  EXPECT_NEAR(two.exponent, 1, 1e-12);
  EXPECT_TRUE(std::isnan(two.error));
}

TEST(Scaling, UpperLengthsAloneAreFitted) {
  const CostCurve line = curve("line", 16384, [](double x) { return x < 4096 ? 1. : x / 4096; });
  EXPECT_NEAR(time_law(line, 4096).exponent, 1, 1e-12);
  EXPECT_LT(time_law(line, 1).exponent, 0.8);
  EXPECT_NEAR(memory_law(line, 1).exponent, 1, 1e-12);
  EXPECT_NEAR(last_exponent(line), 1, 1e-12);
}

/// A square with a linear part looks like less; without the linear part it is one.
TEST(Scaling, WhatGrowsBeyondAnotherHasAnExponentOfItsOwn) {
  const CostCurve dense = curve("dense", 16384, [](double x) { return 1e-4 * x + 1e-8 * x * x; });
  const CostCurve linear = curve("linear", 131072, [](double x) { return 1e-4 * x; });
  EXPECT_LT(time_law(dense, 4096).exponent, 1.8);
  EXPECT_NEAR(time_law_beyond(dense, linear, 4096).exponent, 2, 1e-9);
  EXPECT_TRUE(std::isnan(time_law_beyond(linear, dense, 4096).exponent));
  EXPECT_TRUE(std::isnan(time_law_beyond(linear, linear, 4096).exponent));
}

TEST(Scaling, BetweenAndBeyondTheMeasured) {
  const CostCurve square = curve("square", 16384, [](double x) { return x * x; });
  EXPECT_EQ(seconds_at(square, 2048, 1), 2048. * 2048);
  EXPECT_NEAR(seconds_at(square, 3000, 1), 9e6, 1e-3);
  EXPECT_NEAR(seconds_at(square, 1e6, 1) / 1e12, 1, 1e-9);
  EXPECT_TRUE(std::isnan(seconds_at(square, 512, 1)));
}

TEST(Scaling, CrossingsAreFoundWhereTheyAre) {
  const CostCurve square = curve("square", 16384, [](double x) { return 1e-3 * x * x; });
  const auto line = [](double slope) { return curve("line", 131072, [slope](double x) { return slope * x; }); };
  const auto at = [&](double slope) { return cheaper_from(line(slope), square, 4096); };  // equal at 1000 slope
  EXPECT_EQ(at(0.5).where, Crossing::Where::shortest);
  EXPECT_EQ(words(at(0.5)), "below 1024");
  EXPECT_EQ(at(3.1).where, Crossing::Where::measured);
  EXPECT_NEAR(at(3.1).length, 3100, 1e-6);
  EXPECT_EQ(words(at(3.1)), "about 3.1k");
  EXPECT_EQ(at(37).where, Crossing::Where::extrapolated);
  EXPECT_NEAR(at(37).length, 37000, 1e-4);
  EXPECT_EQ(words(at(37)), "about 37k (extrapolated)");
  EXPECT_EQ(at(400).where, Crossing::Where::beyond);
  EXPECT_NEAR(at(400).length, 4e5, 1e-2);
  EXPECT_EQ(words(at(400)), "beyond the measured, at about 400k");
  const CostCurve cube = curve("cube", 16384, [](double x) { return x * x * x; });
  EXPECT_EQ(words(cheaper_from(cube, square, 4096)), "never");
  EXPECT_EQ(words(cheaper_from(square, square, 4096)), "never");
}

/// Cheaper at short lengths alone is not cheaper from there on.
TEST(Scaling, LastCrossingCounts) {
  const CostCurve line = curve("line", 16384, [](double x) { return x; });
  const CostCurve jagged = curve("jagged", 16384, [](double x) { return x * (x == 4096 ? 1.5 : 0.75); });
  const Crossing crossing = cheaper_from(jagged, line, 1);
  EXPECT_EQ(crossing.where, Crossing::Where::measured);
  EXPECT_GT(crossing.length, 4096);
  EXPECT_LT(crossing.length, 8192);
}

}  // namespace
}  // namespace kinfolk
