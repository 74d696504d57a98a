// log.jsonl: one JSON object a line, for every line that a run prints and every validation.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace kinfolk {

struct LogRow {
  bool validation = false;  ///< "event": "valid" or "train"
  int64_t step = 0, tokens = 0;
  double seconds = 0, work = 0;  ///< of training steps; FLOP
  double loss = 0;               ///< nats per token: mean since the last row (train), or over the validation text
  double bits = 0;               ///< loss / ln 2, bits per byte ("bpb") or per pixel ("bpd", bits per dimension)
  bool pixels = false;           ///< of images
  double accuracy = std::numeric_limits<double>::quiet_NaN();  ///< of a task's answers (validations)
  double rate = 0, norm = 0, tokens_per_second = 0;            ///< of the last step (train rows)
  int64_t skipped = 0;                                         ///< steps skipped until now
  int64_t peak_rss = 0;                                        ///< bytes, of the process
  std::map<std::string, double> losses;                        ///< auxiliary losses by name, of the last step
};

std::string to_json(const LogRow& row);
/// Rows of a log; a torn last line (a killed run) is left out. Throws Error for a line that is not a row.
std::vector<LogRow> read_log(const std::string& path);

class RunLog {
 public:
  /// Goes on after the rows of steps up to `step`; what a stopped run wrote beyond is removed.
  RunLog(const std::string& path, int64_t step);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;
  void add(const LogRow& row);  ///< written at once

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace kinfolk
