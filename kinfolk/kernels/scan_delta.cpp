#include "kinfolk/kernels/scan_delta.h"

#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace delta {
#define KINFOLK_BODY "kinfolk/kernels/scan_delta_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace delta

bool scan_delta_fits(const DeltaSizes& z) { return z.size % 16 == 0 && z.keys % 16 == 0 && z.values % 16 == 0; }

int64_t scan_delta_scratch(const DeltaSizes& z) {
  return z.size * z.keys + 4 * z.size * z.values + 2 * z.keys * z.values + 6 * z.size * z.size + 3 * z.size;
}

void scan_delta_forward(const DeltaSizes& sizes, const DeltaForward& head, float* scratch) {
  static const auto run = KINFOLK_PICK(delta, forward);
  run(sizes, head, scratch);
}

void scan_delta_backward(const DeltaSizes& sizes, const DeltaBackward& head, float* scratch) {
  static const auto run = KINFOLK_PICK(delta, backward);
  run(sizes, head, scratch);
}

}  // namespace kinfolk::kernels
