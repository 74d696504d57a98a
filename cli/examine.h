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
};

/// Bits by length and position, and when full speed, sample and sight, of the last checkpoint of the run. The result is
/// kept in RUN/examined.json, so that a comparison that was stopped goes on; it is made anew when what is asked, the
/// held-out text or the run (`steps`) is another.
nlohmann::json examine(const std::filesystem::path& run, const Corpus& corpus, const Examination& wanted,
                       int64_t steps);

}  // namespace kinfolk
