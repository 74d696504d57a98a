// How fast a member trains, reads and decodes on this machine, by length.
#pragma once
#include <cstdint>
#include <vector>

#include "kinfolk/nn/model.h"

namespace kinfolk {

constexpr int64_t kDecodeSteps = 8;  ///< after the length, those that are not timed included

struct Throughput {
  int64_t length = 0;
  double train = 0;         ///< tokens a second, forward and backward of one lane of this length; 0: not measured
  double read = 0;          ///< tokens a second, streaming in chunks without gradient
  double decode = 0;        ///< steps a second, one token at a time after `length` tokens
  int64_t state_bytes = 0;  ///< of one lane after `length` tokens
  int64_t train_peak = 0, read_peak = 0;  ///< growth of resident memory, bytes
};

/// Random tokens, one lane. Members with a last position are measured up to it; longer lengths are left out.
std::vector<Throughput> measure(Model& model, const std::vector<int64_t>& lengths, int64_t chunk = 512,
                                bool training = true);

}  // namespace kinfolk
