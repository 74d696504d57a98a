#include "kinfolk/kernels/scan_decay.h"

#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace decay {
#define KINFOLK_BODY "kinfolk/kernels/scan_decay_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace decay

bool scan_decay_fits(const DecaySizes& z) { return z.size % 16 == 0 && z.keys % 16 == 0 && z.values % 16 == 0; }

int64_t scan_decay_scratch(const DecaySizes& z) {
  return z.size * (z.keys + z.values) + 2 * z.keys * z.values + 2 * z.size * z.size;
}

void scan_decay_forward(const DecaySizes& sizes, const DecayForward& head, float* scratch) {
  static const auto run = KINFOLK_PICK(decay, forward);
  run(sizes, head, scratch);
}

void scan_decay_backward(const DecaySizes& sizes, const DecayBackward& head, float* scratch) {
  static const auto run = KINFOLK_PICK(decay, backward);
  run(sizes, head, scratch);
}

}  // namespace kinfolk::kernels
