// How time and memory grow with the length: measured curves, the power laws through them, and where they cross.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace kinfolk {

/// What one call costs at one length.
struct CostPoint {
  int64_t length = 0;
  double seconds = 0;  ///< the median of `rounds`
  double bytes = 0;    ///< how far resident memory rises at most
  int64_t rounds = 0;
};

struct CostCurve {
  std::string name;
  std::vector<CostPoint> points = {};  ///< in the order of their lengths
};

/// y = scale x^exponent.
struct PowerLaw {
  double exponent = std::numeric_limits<double>::quiet_NaN();  ///< NaN: there are not two points
  double error = std::numeric_limits<double>::quiet_NaN();     ///< standard error of the exponent; NaN: of two points
  double scale = std::numeric_limits<double>::quiet_NaN();
  int64_t points = 0;
  double at(double x) const;
};

/// The least squares of log y over log x; points with x or y not above 0 are left out.
PowerLaw fit_power(const std::vector<std::pair<double, double>>& points);

/// Of the seconds, of the bytes, of the lengths from `fit_from` on.
PowerLaw time_law(const CostCurve& curve, int64_t fit_from);
PowerLaw memory_law(const CostCurve& curve, int64_t fit_from);
/// Of the seconds less those of `other` at the same lengths; no exponent where they are not less at each of them.
PowerLaw time_law_beyond(const CostCurve& curve, const CostCurve& other, int64_t fit_from);
/// The exponent of the seconds between the two longest lengths; NaN of a single one.
double last_exponent(const CostCurve& curve);

/// Seconds at a length: as measured, between two measured ones a straight line of the logarithms, beyond the longest
/// the longest's with the exponent of the fit. NaN below the shortest.
double seconds_at(const CostCurve& curve, double length, int64_t fit_from);

/// From which length on a curve stays below another.
struct Crossing {
  enum class Where {
    shortest,      ///< at every length
    measured,      ///< between lengths at which both were measured
    extrapolated,  ///< where the reference was no longer measured
    beyond,        ///< past the longest measured of both
    never          ///< as both grow, not at all
  } where = Where::never;
  double length = std::numeric_limits<double>::quiet_NaN();  ///< NaN of `never`; the shortest measured of `shortest`
};

/// Both curves begin at the same length.
Crossing cheaper_from(const CostCurve& curve, const CostCurve& reference, int64_t fit_from);
/// "below 1024", "about 3.1k", "about 37k (extrapolated)", "beyond the measured, at about 400k", "never".
std::string words(const Crossing& crossing);

}  // namespace kinfolk
