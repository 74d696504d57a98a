#include "kinfolk/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kinfolk {

double Schedule::at(double spent) const {
  spent = std::clamp(spent, 0.0, 1.0);
  if (spent < warmup) return spent / warmup;
  const double u = warmup < 1 ? (spent - warmup) / (1 - warmup) : 0;
  if (kind == "cosine") return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * u));
  if (kind == "linear") return 1 - (1 - floor) * u;
  return 1;
}

}  // namespace kinfolk
