// How fast attend is beside libtorch's own attention, scaled_dot_product_attention ("SDPA"), on this machine.
#pragma once
#include "kinfolk/eval/bench_run.h"

namespace kinfolk {

/// The groups of rows, in their order, and what each measures.
const std::vector<std::pair<std::string, std::string>>& bench_attend_groups();
/// 8 heads of width 64, one lane, causal; float32 unless a row says otherwise.
void bench_attend(BenchRun& run);

}  // namespace kinfolk
