// How fast the recurrences are beside libtorch's causal attention ("SDPA") and beside the same in torch operators.
#pragma once
#include "kinfolk/eval/bench_run.h"

namespace kinfolk {

/// The groups of rows, in their order, and what each measures.
const std::vector<std::pair<std::string, std::string>>& bench_scan_groups();
/// 8 heads of width 64, the selective scan 1024 channels of 16 states, the convolution 1024 channels of 4 taps: what a
/// layer of width 512 has; one lane, float32.
void bench_scan(BenchRun& run);

}  // namespace kinfolk
