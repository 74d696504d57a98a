// How far a long job is, on stderr.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace kinfolk {

/// On a terminal one line redrawn in place, at most ten times a second:
///   `train rerope  [##########----------]   52 %  1:03, 0:58 left  loss 1.63`
/// elsewhere (a file, a pipe, CI) a plain line at most every ten seconds. `finish` (or the destructor) clears the line
/// on a terminal; what was worth keeping, the caller prints. Not for several threads at once.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  struct Screen {  // what a test replaces
    bool terminal = false;
    int64_t columns = 80;
    std::function<void(const std::string&)> write;
    std::function<Clock::time_point()> now = Clock::now;
  };

  /// `total` in any unit (tokens, steps, seconds); 0 = unknown, then no percentage, bar or remaining time is shown.
  Progress(std::string title, double total);
  Progress(std::string title, double total, Screen screen);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` since the start, in the unit of `total`. `note` is free text; on a terminal it is cut at the edge.
  void update(double done, const std::string& note = "");
  /// Clears the line, prints `line` and goes on: for messages in between.
  void say(const std::string& line);
  void finish();
  /// A resumed job starts at `done`: the remaining time is judged by what was done since.
  void start_at(double done) { first_ = done; }

 private:
  std::string line(double done, const std::string& note, Clock::time_point now) const;

  std::string title_;
  double total_, first_ = 0;
  Screen screen_;
  Clock::time_point begin_, shown_;
  bool drawn_ = false, any_ = false;
};

/// "0:07", "12:30", "3:04:05".
std::string clock_text(double seconds);

/// stderr as it is: a terminal or not, and its width.
Progress::Screen standard_error();

}  // namespace kinfolk
