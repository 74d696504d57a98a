#include "kinfolk/kernels/scan_decay.h"

#include <algorithm>

#include "kinfolk/kernels/flush_denormals.h"
#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace decay {
constexpr int64_t kInner = 16;  ///< tokens of the inner chunks with a decay for each channel
#define KINFOLK_BODY "kinfolk/kernels/scan_decay_bodies.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace decay

bool scan_decay_fits(const DecaySizes& z) { return z.size % 16 == 0 && z.keys % 16 == 0 && z.values % 16 == 0; }

int64_t scan_decay_scratch(const DecaySizes& z) {
  const int64_t square = z.keys * z.values;
  if (!z.channels) {
    return z.size * (z.keys + 2 * z.values + 4) + 2 * square + 3 * z.size * z.size + z.size * std::max(z.size, z.keys);
  }
  const int64_t T = decay::kInner;
  return (z.size / T + 2) * square + 2 * T * z.keys + 2 * T * z.values + 2 * T * T + 2 * z.keys;
}

void scan_decay_forward(const DecaySizes& sizes, const DecayForward& head, float* scratch) {
  static const auto token = KINFOLK_PICK(decay, token_forward), channel = KINFOLK_PICK(decay, channel_forward);
  const FlushDenormals flush;
  (sizes.channels ? channel : token)(sizes, head, scratch);
}

void scan_decay_backward(const DecaySizes& sizes, const DecayBackward& head, float* scratch) {
  static const auto token = KINFOLK_PICK(decay, token_backward), channel = KINFOLK_PICK(decay, channel_backward);
  const FlushDenormals flush;
  (sizes.channels ? channel : token)(sizes, head, scratch);
}

}  // namespace kinfolk::kernels
