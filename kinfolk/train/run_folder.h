// The folder of a run:
//   recipe.toml  size.toml  settings.toml    resolved, as they were used
//   log.jsonl    events.out.tfevents...      what happened
//   checkpoints/last.safetensors  best.safetensors  step_00001000.safetensors
//   result.json                              when it ended
#pragma once
#include <cstdint>
#include <string>

#include "kinfolk/train/checkpoint.h"

namespace kinfolk {

class RunFolder {
 public:
  /// Makes the folder. Throws UsageError when another run lies there and `resume` is false.
  RunFolder(const std::string& path, bool resume);

  std::string file(const std::string& name) const;
  std::string last() const { return file("checkpoints/last.safetensors"); }
  std::string best() const { return file("checkpoints/best.safetensors"); }
  bool has_checkpoint() const;
  void write_configuration(const RunRecord& record) const;
  /// Gives the last checkpoint a second name with its step, and removes the oldest ones beyond `keep`.
  void keep_numbered(int64_t step, int64_t keep) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kinfolk
