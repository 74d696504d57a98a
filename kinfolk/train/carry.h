// How long the lanes of a training run carry their states.
#pragma once
#include <algorithm>
#include <cstdint>

namespace kinfolk {

/// Each lane begins anew once in `tokens` tokens, lane after lane in turn: a member that never began from nothing since
/// its first step would read the beginning of every text badly.
struct Carry {
  int64_t tokens;  ///< 0: never anew
  int64_t length;  ///< tokens of a lane in a step
  int64_t lanes;

  /// Steps for which a lane's state has been carried when step number `step` begins; 0: it begins from nothing.
  int64_t steps(int64_t step, int64_t lane) const {
    if (tokens == 0) return step;
    const int64_t period = std::max<int64_t>(1, tokens / length);
    return std::min(step, (step + lane * period / lanes) % period);
  }
};

}  // namespace kinfolk
