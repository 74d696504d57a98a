// Bits per byte of held-out text, by length of the context and by position.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kinfolk/eval/session.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {

using Bytes = std::vector<uint8_t>;

struct ScoreOptions {
  std::vector<int64_t> lengths = {512};
  int64_t tokens = 65536;     ///< scored at each length, at most (at least one window)
  int64_t windows = 0;        ///< more than 0: so many windows at each length, whatever `tokens` says, and those of all
                              ///< lengths end at the same places: the same bytes are read with more before them
  int64_t last = 0;           ///< more than 0: these last tokens of each window are scored by themselves, too
  int64_t lanes = 8;          ///< windows scored side by side, at most
  int64_t chunk = 512;        ///< tokens of one call while streaming
  std::string mode = "auto";  ///< "stream": one carried state a window; "blocks": fresh at every `context` tokens;
                              ///< "auto": by the member
  std::function<void(double share)> progress;
  SessionOptions session = {};             ///< memory limit, of each window, and what happens there
  const Session* from = nullptr;           ///< windows, one lane at a time, go on from it instead of from nothing
  std::function<void(Session&)> end = {};  ///< called with what has read some windows, side by side
};

struct LengthScore {
  int64_t length = 0, tokens = 0;
  double bits = 0;                ///< per byte, mean over all tokens of all windows
  double error = 0;               ///< standard error over windows; NaN with one window
  std::vector<double> each;       ///< bits per byte of each window
  std::vector<double> last_bits;  ///< the same over its last tokens (all when it has no more); empty when not asked
  std::string mode;               ///< "stream" or "blocks of N"
  double tokens_per_second = 0;
  int64_t peak_growth = 0;  ///< bytes of resident memory above that before the run
  int64_t state_bytes = 0;  ///< of one lane at the end
  int64_t held_bytes = 0;   ///< of the memory of a lane's state, at most (Session::bytes)
  std::string policy;       ///< what is kept of the past, in words
};

/// Bits at positions [from, to) of a window, averaged over windows.
struct PositionScore {
  int64_t from = 0, to = 0;
  double bits = 0, error = 0;
};

struct Scores {
  std::vector<LengthScore> lengths;
  std::vector<PositionScore> positions;  ///< of the longest length, in ranges that double
};

/// Mean, and its standard error (NaN of one value).
std::pair<double, double> mean_and_error(const std::vector<double>& values);

/// Refuses a member that is trained to fill in hidden tokens, and has no bits per byte.
void check_says_next(const Recipe& recipe);

/// Refuses, or fails, what `score` would: a mode that the member does not have, a text shorter than a window.
void check_scorable(const Model& model, const Bytes& text, const std::vector<int64_t>& lengths,
                    const std::string& mode);

/// Windows of `length` + 1 bytes, evenly spaced in the text; each starts from nothing and all its bytes but the first
/// are scored. Throws Error when the text is shorter than a window, or than so many that do not overlap when `windows`
/// are asked for.
Scores score(Model& model, const Bytes& text, const ScoreOptions& options);

/// [B, L] tokens of the bytes text[starts[b] + from + l].
Tensor gather_tokens(const Bytes& text, const std::vector<int64_t>& starts, int64_t from, int64_t length);

}  // namespace kinfolk
