#include "kinfolk/eval/interleave.h"

#include <algorithm>
#include <cmath>
#include <ctime>

namespace kinfolk {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double cpu_seconds() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }
double wall_seconds() { return seconds_of(CLOCK_MONOTONIC); }

double median(std::vector<double> x) {
  if (x.empty()) return 0;
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

double Interleaved::ratio(size_t a, size_t b) const {
  std::vector<double> ratios;
  for (size_t round = 0; round < seconds[a].size(); ++round) ratios.push_back(seconds[a][round] / seconds[b][round]);
  return median(ratios);
}

Interleaved interleave(const std::vector<std::function<void()>>& runs, const Turns& turns) {
  const auto timed = [&](const std::function<void()>& run, int64_t repeats) {
    const auto clock = turns.wall ? wall_seconds : cpu_seconds;
    const double begin = clock();
    for (int64_t n = 0; n < repeats; ++n) run();
    return (clock() - begin) / static_cast<double>(repeats);
  };
  Interleaved out;
  out.seconds.resize(runs.size());
  std::vector<double> first;
  double round_seconds = 0;
  for (const auto& run : runs) first.push_back(timed(run, 1)), round_seconds += first.back();
  if (round_seconds > turns.once) {
    for (size_t i = 0; i < runs.size(); ++i) out.seconds[i].push_back(first[i]);
    if (turns.note) turns.note(static_cast<int64_t>(runs.size()), 1);
    return out;
  }
  std::vector<int64_t> repeats;
  round_seconds = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    // The first run of all pays for what is made once; a second one says better what a short run takes.
    if (first[i] < turns.shortest) first[i] = std::min(first[i], timed(runs[i], 1));
    repeats.push_back(
        std::clamp<int64_t>(std::llround(std::ceil(turns.shortest / std::max(first[i], 1e-9))), 1, 10000));
    round_seconds += first[i] * static_cast<double>(repeats.back());
  }
  const int64_t rounds = std::clamp<int64_t>(std::llround(turns.seconds / std::max(round_seconds, 1e-9)), turns.least,
                                             std::max(turns.least, turns.most));
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (turns.settle) runs[i]();
      out.seconds[i].push_back(timed(runs[i], repeats[i]));
      if (turns.note) turns.note(round * static_cast<int64_t>(runs.size()) + static_cast<int64_t>(i) + 1, rounds);
    }
  }
  return out;
}

}  // namespace kinfolk
