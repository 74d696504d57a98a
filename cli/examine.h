// What compare measures of a member once its training is over.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kinfolk/train/data/bytes.h"

namespace kinfolk {

struct Examination {
  std::vector<int64_t> lengths;
  int64_t tokens = 65536;  ///< scored at each length, at most
  std::string prompt;
  bool full = true;  ///< with speed, a sample and who sees whom; else bits alone
  // Of a study:
  int64_t windows = 0, last = 0;  ///< see ScoreOptions
  bool apart = true;              ///< the trained length is scored by itself over `tokens`, too
  std::string mode = "auto";
  std::string name;               ///< of what is applied to the run; empty: the run as it is
  std::vector<std::string> sets;  ///< what is applied, as --set takes it
};

/// Bits by length and position, and when full speed, sample and sight, of the last checkpoint of the run. The result is
/// kept in RUN/examined.json (RUN/examined-NAME.json), so that a comparison that was stopped goes on; it is made anew
/// when what is asked, the held-out text or the run (`steps`) is another.
nlohmann::json examine(const std::filesystem::path& run, const Corpus& corpus, const Examination& wanted,
                       int64_t steps);

}  // namespace kinfolk
