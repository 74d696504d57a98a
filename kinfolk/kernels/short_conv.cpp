#include "kinfolk/kernels/short_conv.h"

#include <algorithm>

#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace conv {
#define KINFOLK_BODY "kinfolk/kernels/short_conv_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace conv

void short_conv_forward(const ShortConvSizes& sizes, const ShortConvForward& lane, int64_t from, int64_t until) {
  static const auto run = KINFOLK_PICK(conv, forward);
  run(sizes, lane, from, until);
}

void short_conv_step(const ShortConvStep& step) {
  static const auto run = KINFOLK_PICK(conv, run_step);
  run(step);
}

void short_conv_backward(const ShortConvSizes& sizes, const ShortConvBackward& lane, int64_t from, int64_t until,
                         float* scratch) {
  static const auto run = KINFOLK_PICK(conv, backward);
  run(sizes, lane, from, until, scratch);
}

}  // namespace kinfolk::kernels
