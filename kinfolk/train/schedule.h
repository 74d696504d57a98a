// Learning rate by the share of the budget that is spent.
#pragma once
#include <string>

namespace kinfolk {

struct Schedule {
  std::string kind = "cosine";  ///< cosine | linear | constant
  double warmup = 0.03;         ///< share of the budget
  double floor = 0.1;           ///< share of the highest rate

  /// Factor of the highest rate after a share `spent` (0 to 1) of the budget:
  ///   spent < warmup:  spent / warmup
  ///   then, with u = (spent - warmup) / (1 - warmup):
  ///   cosine           floor + (1 - floor) (1 + cos(pi u)) / 2
  ///   linear           1 - (1 - floor) u
  ///   constant         1
  double at(double spent) const;
};

}  // namespace kinfolk
