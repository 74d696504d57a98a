#include "kinfolk/kernels/scan_delta_step.h"

#include "kinfolk/kernels/flush_denormals.h"
#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace delta_step {
#define KINFOLK_BODY "kinfolk/kernels/scan_delta_step_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace delta_step

void scan_delta_step(const DeltaStep& step) {
  static const auto run = KINFOLK_PICK(delta_step, run_step);
  const FlushDenormals flush;
  run(step);
}

}  // namespace kinfolk::kernels
