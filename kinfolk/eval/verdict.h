// Which member is best, by how much, and whether the numbers allow to say so.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kinfolk/eval/report.h"

namespace kinfolk {

/// Mean over the seeds that did not diverge, and their sample standard deviation (not a number below two seeds).
struct Estimate {
  double mean = kNothing, spread = kNothing;
  int64_t seeds = 0, diverged = 0;
};
Estimate estimate(const std::vector<double>& values);

/// Whether `lower` is below `higher` beyond chance.
enum class Difference {
  clear,     // two seeds or more each: beyond 95 % of Student's t with the pooled degrees of freedom
  within,    // ... not beyond
  one_run,   // a single seed on one side, but beyond two standard errors of the evaluation text (where they are known)
  too_close  // a single seed, and not beyond
};
Difference compare(const Estimate& lower, double lower_error, const Estimate& higher, double higher_error);

struct Verdict {
  std::vector<int64_t> order;      // members from the best to the worst; those without a finite result last
  std::vector<int64_t> tied;       // members that cannot be told apart from the best one
  std::string sentence;            // the finding in one or two sentences
  std::vector<std::string> notes;  // beyond the trained length, speed, memory, baselines, divergence
};
Verdict verdict(const Report& report);

}  // namespace kinfolk
