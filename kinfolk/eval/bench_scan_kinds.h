// The recurrences that bench_scan measures: their inputs, and three ways to compute each.
#pragma once
#include "kinfolk/eval/bench_run.h"

namespace kinfolk {
using Tensors = std::vector<Tensor>;

struct ScanKind {
  std::string name;
  std::function<Tensors(int64_t length)> inputs;
  std::function<Tensor(const Tensors&)> ours, plain, steps;  ///< steps undefined: not measured
  std::string plain_name;
  double forward_flops = 0;  ///< a token, of the chunked form's products; 0: not counted
  std::optional<Goal> attention = {}, plain_forward = {}, plain_both = {};
};

/// 8 heads of width 64; the selective scan with 1024 channels of 16 states, the convolution with 1024 of 4 taps.
const std::vector<ScanKind>& scan_kinds();

}  // namespace kinfolk
