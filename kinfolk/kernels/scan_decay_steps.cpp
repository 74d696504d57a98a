#include "kinfolk/kernels/scan_decay_steps.h"

#include <algorithm>

#include "kinfolk/kernels/flush_denormals.h"
#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace decay_steps {
constexpr int64_t kKeys = 16;  ///< rows of the state that a backward pass walks over at once
#define KINFOLK_BODY "kinfolk/kernels/scan_decay_steps_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace decay_steps

int64_t scan_decay_steps_scratch(const DecayStepSizes& z) { return (z.every + 1) * decay_steps::kKeys * 64; }

void scan_decay_steps_forward(const DecayStepSizes& sizes, const DecayStepForward& head) {
  static const auto run = KINFOLK_PICK(decay_steps, forward);
  const FlushDenormals flush;
  run(sizes, head);
}

void scan_decay_steps_backward(const DecayStepSizes& sizes, const DecayStepBackward& head, float* scratch) {
  static const auto run = KINFOLK_PICK(decay_steps, backward);
  const FlushDenormals flush;
  run(sizes, head, scratch);
}

}  // namespace kinfolk::kernels
