// How fast a text is read with a memory beside computing the whole context anew for every token.
#pragma once
#include "kinfolk/eval/bench_run.h"

namespace kinfolk {

/// The groups of rows, in their order, and what each measures.
const std::vector<std::pair<std::string, std::string>>& bench_memory_groups();
/// Untrained members of size tiny, one lane, one segment of 128 tokens a call. The length of a row is how many tokens
/// before its segment a token reaches in each layer.
void bench_memory(BenchRun& run);

}  // namespace kinfolk
