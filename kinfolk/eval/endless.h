// A text without end, read by a member with a bounded state.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "kinfolk/eval/session.h"

namespace kinfolk {

struct EndlessOptions {
  int64_t tokens = 10'000'000;
  int64_t chunk = 512;       ///< of one call
  int64_t early = 65'536;    ///< after so many tokens memory is looked at first; at most half of them
  int64_t tail = 4'096;      ///< the last tokens are read in other pieces, too
  bool twice = false;        ///< all tokens are read a second time, in other pieces
  double seconds = 4;        ///< of the steps that are timed
  int64_t memory_limit = 0;  ///< bytes of state; 0: none
  std::string at_limit = "drop";
  std::function<void(double share, const std::string& what)> progress;
};

struct Endless {
  int64_t tokens = 0;
  double read = 0;                                  ///< tokens a second, of all but the tail
  int64_t state_bytes = 0, most_bytes = 0;          ///< Session::bytes at most, and its bound; -1: none
  int64_t resident_early = 0, resident_late = 0;    ///< bytes of the process
  int64_t peak_growth = 0;                          ///< of the resident memory above that early one
  double early_step = 0, late_step = 0, ratio = 0;  ///< seconds a token; median ratio of steps in turns
  double drift = 0;         ///< largest difference of the tail's scores in other pieces, over the largest score
  double drift_twice = -1;  ///< the same of the last scores after all was read again; -1: it was not
  std::string policy;
};

/// Refuses a member that does not stream, and one whose state grows where there is no memory limit. (A model on the
/// meta device will do.)
void check_endless(const Model& model, const EndlessOptions& options);

/// Reads random tokens in chunks with one session. Steps are timed from the two saved states, early and late, in turns.
Endless read_endless(Model& model, const EndlessOptions& options);

}  // namespace kinfolk
