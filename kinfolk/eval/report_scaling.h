// The report of a study of scaling: time and memory by length, exponents, and where a member becomes the cheaper one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kinfolk/eval/scaling.h"

namespace kinfolk {

struct ScalingReport {
  std::string title, layer, machine, date, command;  ///< `layer`: its width and heads in words
  std::string reference, without;                    ///< names of curves; empty: none
  int64_t fit_from = 0;
  std::vector<CostCurve> curves;  ///< in the order of tables and colours
  std::vector<int64_t> lengths() const;
  const CostCurve* find(const std::string& name) const;
};

/// Microseconds a token over the length, both logarithmic, exponents in the legend; dotted: extrapolated.
std::string time_chart(const ScalingReport& report);
/// The same of KiB a token.
std::string memory_chart(const ScalingReport& report);
std::string html(const ScalingReport& report);
/// Tables: exponents and crossings, time, memory.
std::string markdown(const ScalingReport& report);
std::string json(const ScalingReport& report);

}  // namespace kinfolk
