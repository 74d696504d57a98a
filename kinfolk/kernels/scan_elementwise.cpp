#include "kinfolk/kernels/scan_elementwise.h"

#include "kinfolk/kernels/flush_denormals.h"
#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace elementwise {
#define KINFOLK_BODY "kinfolk/kernels/scan_elementwise_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace elementwise

void scan_elementwise_forward(const ElementForward& lane, int64_t from, int64_t until) {
  static const auto run = KINFOLK_PICK(elementwise, forward);
  const FlushDenormals flush;
  run(lane, from, until);
}

void scan_elementwise_backward(const ElementBackward& lane, int64_t from, int64_t until) {
  static const auto run = KINFOLK_PICK(elementwise, backward);
  const FlushDenormals flush;
  run(lane, from, until);
}

}  // namespace kinfolk::kernels
