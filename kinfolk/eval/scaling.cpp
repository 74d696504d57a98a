#include "kinfolk/eval/scaling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kFarthest = 1e12;  // a crossing beyond it is none

template <class Cost>
PowerLaw law_of(const CostCurve& curve, int64_t fit_from, Cost&& cost) {
  std::vector<std::pair<double, double>> points;
  for (const auto& point : curve.points)
    if (point.length >= fit_from) points.emplace_back(static_cast<double>(point.length), cost(point));
  return fit_power(points);
}

const CostPoint* find(const CostCurve& curve, int64_t length) {
  for (const auto& point : curve.points)
    if (point.length == length) return &point;
  return nullptr;
}

double line(double x, double x0, double y0, double x1, double y1) { return y0 + (y1 - y0) * (x - x0) / (x1 - x0); }

/// Two digits, as what is interpolated deserves: 850, 3.1k, 37k, 1.2M.
std::string about(double length) {
  const char* units[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (length >= 999.5 && unit + 1 < std::size(units)) length /= 1000, ++unit;
  char out[32];
  std::snprintf(out, sizeof out, length < 9.95 && unit > 0 ? "%.1f%s" : "%.0f%s", length, units[unit]);
  return out;
}

}  // namespace

double PowerLaw::at(double x) const { return scale * std::pow(x, exponent); }

PowerLaw fit_power(const std::vector<std::pair<double, double>>& points) {
  std::vector<std::pair<double, double>> logs;
  for (const auto& [x, y] : points)
    if (x > 0 && y > 0) logs.emplace_back(std::log(x), std::log(y));
  PowerLaw out;
  out.points = static_cast<int64_t>(logs.size());
  const double n = static_cast<double>(logs.size());
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0, rest = 0;
  for (const auto& [x, y] : logs) mean_x += x / n, mean_y += y / n;
  for (const auto& [x, y] : logs) xx += (x - mean_x) * (x - mean_x), xy += (x - mean_x) * (y - mean_y);
  if (logs.size() < 2 || !(xx > 0)) return out;
  out.exponent = xy / xx;
  out.scale = std::exp(mean_y - out.exponent * mean_x);
  for (const auto& [x, y] : logs) rest += std::pow(y - mean_y - out.exponent * (x - mean_x), 2);
  if (logs.size() > 2) out.error = std::sqrt(rest / (n - 2) / xx);
  return out;
}

PowerLaw time_law(const CostCurve& curve, int64_t fit_from) {
  return law_of(curve, fit_from, [](const CostPoint& point) { return point.seconds; });
}

PowerLaw memory_law(const CostCurve& curve, int64_t fit_from) {
  return law_of(curve, fit_from, [](const CostPoint& point) { return point.bytes; });
}

PowerLaw time_law_beyond(const CostCurve& curve, const CostCurve& other, int64_t fit_from) {
  bool more = true;
  const PowerLaw law = law_of(curve, fit_from, [&](const CostPoint& point) {
    const CostPoint* same = find(other, point.length);
    if (!same) return kNaN;  // left out
    more = more && point.seconds > same->seconds;
    return point.seconds - same->seconds;
  });
  return more ? law : PowerLaw{};
}

double last_exponent(const CostCurve& curve) {
  if (curve.points.size() < 2) return kNaN;
  return time_law(curve, curve.points[curve.points.size() - 2].length).exponent;
}

double seconds_at(const CostCurve& curve, double length, int64_t fit_from) {
  const auto& points = curve.points;
  if (points.empty() || length < static_cast<double>(points.front().length)) return kNaN;
  for (size_t i = 0; i < points.size(); ++i) {
    const double here = static_cast<double>(points[i].length);
    if (length == here) return points[i].seconds;
    if (length < here) {
      const double before = static_cast<double>(points[i - 1].length);
      return std::exp(line(std::log(length), std::log(before), std::log(points[i - 1].seconds), std::log(here),
                           std::log(points[i].seconds)));
    }
  }
  const double longest = static_cast<double>(points.back().length);
  return points.back().seconds * std::pow(length / longest, time_law(curve, fit_from).exponent);
}

Crossing cheaper_from(const CostCurve& curve, const CostCurve& reference, int64_t fit_from) {
  Crossing out;
  if (curve.points.empty() || reference.points.empty()) return out;
  // log of how many times as dear as the reference, at all lengths of either
  std::vector<std::pair<double, double>> over;
  for (const CostCurve* one : {&curve, &reference})
    for (const auto& point : one->points) {
      const double length = static_cast<double>(point.length);
      over.emplace_back(length,
                        std::log(seconds_at(curve, length, fit_from) / seconds_at(reference, length, fit_from)));
    }
  std::sort(over.begin(), over.end());
  const auto both = static_cast<double>(std::min(curve.points.back().length, reference.points.back().length));
  size_t cheap = over.size();  // from which on it is cheaper at all
  while (cheap > 0 && over[cheap - 1].second < 0) --cheap;
  if (cheap == 0) return {Crossing::Where::shortest, over.front().first};
  if (cheap == over.size()) {
    const double faster = time_law(reference, fit_from).exponent - time_law(curve, fit_from).exponent;
    const double length = over.back().first * std::exp(over.back().second / faster);
    if (!(faster > 0) || !(length < kFarthest)) return out;
    return {Crossing::Where::beyond, length};
  }
  const auto& [x0, y0] = over[cheap - 1];
  const auto& [x1, y1] = over[cheap];
  out.length = std::exp(line(0, y0, std::log(x0), y1, std::log(x1)));
  out.where = x1 <= both ? Crossing::Where::measured : Crossing::Where::extrapolated;
  return out;
}

std::string words(const Crossing& crossing) {
  const std::string length = about(crossing.length);
  switch (crossing.where) {
    case Crossing::Where::shortest:
      return text("below ", static_cast<int64_t>(crossing.length));
    case Crossing::Where::measured:
      return text("about ", length);
    case Crossing::Where::extrapolated:
      return text("about ", length, " (extrapolated)");
    case Crossing::Where::beyond:
      return text("beyond the measured, at about ", length);
    case Crossing::Where::never:
      break;
  }
  return "never";
}

}  // namespace kinfolk
