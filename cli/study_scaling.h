// Studies of scaling: what a layer of each member costs at each length, and how that grows.
#pragma once
#include <string>

#include "kinfolk/eval/study.h"

namespace kinfolk {

/// Measures the members of a study with [scaling] length by length, one thread, and writes OUT/report.html, table.md,
/// report.json, time.svg and memory.svg anew after each length. Returns the exit status: 130 where it was stopped, with
/// what was measured until then.
int compare_scaling(const Study& study, const std::string& out);

}  // namespace kinfolk
