#include "kinfolk/kernels/scan_selective.h"

#include <initializer_list>
#include <type_traits>

#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace selective {
#define KINFOLK_BODY "kinfolk/kernels/scan_selective_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace selective

int64_t scan_selective_scratch(const SelectiveSizes& z, int64_t from, int64_t until) {
  constexpr int64_t kWidest = 16, kGroup = 8;
  const int64_t tokens = kSelectiveTokens * kWidest;
  return tokens * 10 + (2 * kSelectiveTokens + 1) * kGroup * kWidest  // values of the tokens; states, decays
         + 2 * z.states * (kWidest + tokens) + 2 * z.states * (until - from);
}

void scan_selective_forward(const SelectiveSizes& sizes, const SelectiveForward& lane, int64_t from, int64_t until,
                            float* scratch) {
  static const auto run = KINFOLK_PICK(selective, forward);
  run(sizes, lane, from, until, scratch);
}

void scan_selective_backward(const SelectiveSizes& sizes, const SelectiveBackward& lane, int64_t from, int64_t until,
                             float* scratch) {
  static const auto run = KINFOLK_PICK(selective, backward);
  run(sizes, lane, from, until, scratch);
}

}  // namespace kinfolk::kernels
