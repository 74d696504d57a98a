// Several ways of doing a thing, timed in turns, so that whatever else the machine does falls on all of them.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace kinfolk {

double cpu_seconds();   ///< of all threads of this process, user and system
double wall_seconds();  ///< of a clock that never goes back

/// The middle one, of an even number the greater of the two; 0 of none.
double median(std::vector<double> x);

/// How the rounds are made.
struct Turns {
  double seconds = 1;      ///< of all rounds together, about
  int64_t least = 3;       ///< rounds
  int64_t most = 25;       ///< rounds
  double shortest = 2e-3;  ///< a run is repeated within its turn until the turn takes this long, in seconds
  double once = 4;         ///< where the first round takes longer than this, it is the only one, in seconds
  bool settle = false;     ///< each turn begins with a run that is not timed: it takes back what others took of caches
  bool wall = false;       ///< wall time instead of CPU time: for several threads on a quiet machine
  std::function<void(int64_t done, int64_t rounds)> note = {};  ///< called after each turn, in turns
};

struct Interleaved {
  std::vector<std::vector<double>> seconds;  ///< [run][round], of one run
  int64_t rounds() const { return seconds.empty() ? 0 : static_cast<int64_t>(seconds[0].size()); }
  double time(size_t run) const { return median(seconds[run]); }
  /// The median over the rounds of time of `a` over time of `b`.
  double ratio(size_t a, size_t b) const;
};

/// A B C A B C ...: a first round to warm up, then as many as fit into the time.
Interleaved interleave(const std::vector<std::function<void()>>& runs, const Turns& turns);

}  // namespace kinfolk
