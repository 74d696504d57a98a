// What the measured cases (bench_attend, bench_scan) are written with: contests in turns, growth with the length, peaks
// of memory; one row each.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinfolk/eval/interleave.h"

namespace kinfolk {
using at::Tensor;

/// What a row is held against: its ratio at least, or at most, the bound.
struct Goal {
  double bound = 0;
  bool at_most = false;
};

/// One line of the table.
struct BenchRow {
  std::string group, what;  ///< the word that asks for it, and what is measured
  int64_t length = 0;
  std::string unit;             ///< of ours and theirs: "s", "B" or "" (relative error)
  double ours = 0, theirs = 0;  ///< theirs: what it is compared with, named by `other`
  std::string other;
  double ratio = 0;               ///< theirs / ours in contests; long / short in growth; ours / theirs else
  std::optional<Goal> goal = {};  ///< of the ratio
  std::string rate_unit = {};     ///< "GFLOP/s" or "GB/s"
  double rate = 0, limit = 0;     ///< ours, 0: not counted; and what the machine reached in the same rounds
  int64_t rounds = 0;             ///< 0: not timed
  bool met() const { return !goal || (goal->at_most ? ratio <= goal->bound : ratio >= goal->bound); }
};

std::string bench_heading();                  ///< the first line of the table
std::string bench_line(const BenchRow& row);  ///< a line of it
/// The rows as a JSON array of objects with the fields' names.
std::string bench_json(const std::vector<BenchRow>& rows);

struct BenchOptions {
  std::vector<std::string> groups = {};                    ///< which; none: all
  std::vector<int64_t> lengths = {};                       ///< instead of those of each case
  bool full = false;                                       ///< also the lengths that take minutes
  bool wall = false;                                       ///< wall time: for several threads
  std::function<void(const BenchRow&)> row = {};           ///< called with each row as soon as it is measured
  std::function<void(const std::string& note)> note = {};  ///< called often: what is being measured
};

/// What is run, and the leaves whose gradients the backward pass gives.
struct Side {
  std::function<Tensor()> out;
  std::vector<Tensor> leaves = {};
};

/// Ours against another, forward and forward + backward.
struct Contest {
  std::string what;
  int64_t length = 0;
  std::string other;
  double forward_flops = 0, both_flops = 0;  ///< of ours; 0: not counted
  std::optional<Goal> forward_goal = {}, both_goal = {};
  bool forward = true, both = true;  ///< which of the two rows
  double scale = 1;                  ///< theirs counts this many times: measured at another length
  bool half = false;                 ///< the rate beside it is that of a bfloat16 product
};

class BenchRun {
 public:
  explicit BenchRun(BenchOptions options) : options_(std::move(options)) {}

  /// Whether this group of rows is asked for; the rows that follow are of it.
  bool wants(const std::string& group);
  bool full() const { return options_.full; }
  /// The user's lengths, or these: in a full run all of them.
  std::vector<int64_t> lengths(const std::vector<int64_t>& quick, const std::vector<int64_t>& more = {}) const;
  /// The shortest and the longest of the user's lengths, or these.
  std::pair<int64_t, int64_t> stretch(int64_t shorter, int64_t longer) const;

  void contest(const Contest& contest, const Side& ours, const Side& theirs);
  /// Runs without gradients of `ours` and of the other, with a row whose rate is bytes over time beside what a read of
  /// memory reaches. bytes = 0: without.
  void step(const std::string& what, int64_t length, const std::string& other, double bytes,
            const std::function<void()>& ours, const std::function<void()>& theirs, std::optional<Goal> goal = {});
  /// Time a token at the longer length over that at the shorter; no row where they are equal. run(true) is the longer.
  void growth(const std::string& what, std::pair<int64_t, int64_t> lengths, double most,
              const std::function<void(bool longer)>& run);
  /// How far the resident memory rises while this runs, at most.
  int64_t peak(const std::function<void()>& run);
  void add(BenchRow row);  ///< with the group of now; goals are for the lengths of the cases themselves
  void note(const std::string& what) const {
    if (options_.note) options_.note(what);
  }

 private:
  Turns turns(const std::string& what) const;
  std::function<void()> product(bool half);  ///< 1024 x 1024 x 1024
  std::function<void()> reading();           ///< 256 MiB
  BenchOptions options_;
  std::string group_;
  Tensor a_, b_, c_, half_a_, half_b_, half_c_, wide_, thin_, sums_;
};

/// forward of `side` without gradients; forward and backward of it with.
std::function<void()> forward_of(const Side& side);
std::function<void()> both_of(const Side& side);

}  // namespace kinfolk
