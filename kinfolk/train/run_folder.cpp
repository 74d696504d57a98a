#include "kinfolk/train/run_folder.h"

#include <algorithm>
#include <cstdio>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;
constexpr auto kNumbered = "step_";

}  // namespace

RunFolder::RunFolder(const std::string& path, bool resume) : path_(path) {
  if (path.empty()) refuse("[out] expected the path of a folder; found an empty path");
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) {
    refuse("[out] ", path, ": expected a folder; found a file");
  }
  if (!resume)
    for (const char* trace : {"recipe.toml", "log.jsonl", "checkpoints"})
      if (fs::exists(file(trace), error)) {
        refuse("[out] ", path, ": expected a new folder, or --resume auto to go on with the run in it; found ", trace,
               " of another run");
      }
  fs::create_directories(file("checkpoints"), error);
  if (error) fail("[out] ", path, ": expected a folder that can be written; found ", error.message());
  for (const auto& entry :
       fs::directory_iterator(file("checkpoints"), error))  // of a run that was killed while it saved
    if (entry.path().extension() == ".tmp") fs::remove(entry.path(), error);
}

std::string RunFolder::file(const std::string& name) const { return (fs::path(path_) / name).string(); }

bool RunFolder::has_checkpoint() const {
  std::error_code error;
  return fs::exists(last(), error);
}

void RunFolder::write_configuration(const RunRecord& record) const {
  write_file(file("recipe.toml"), write_toml(record.recipe.tree));
  write_file(file("size.toml"), write_toml(write_options(record.size)));
  write_file(file("settings.toml"), write_toml(write_options(record.settings)));
}

void RunFolder::keep_numbered(int64_t step, int64_t keep) const {
  if (keep <= 0) return;
  char name[64];
  std::snprintf(name, sizeof name, "checkpoints/%s%08lld.safetensors", kNumbered, static_cast<long long>(step));
  std::error_code error;
  fs::remove(file(name), error);
  fs::create_hard_link(last(), file(name), error);
  if (error) {  // a file system without links
    error.clear();
    const std::string partial = file(name) + ".tmp";
    fs::copy_file(last(), partial, fs::copy_options::overwrite_existing, error);
    if (!error) fs::rename(partial, file(name), error);
    if (error) fail("[out] ", file(name), ": expected room for a copy of the last checkpoint; found ", error.message());
  }
  std::vector<fs::path> numbered;
  for (const auto& entry : fs::directory_iterator(file("checkpoints"), error))
    if (entry.path().filename().string().starts_with(kNumbered)) numbered.push_back(entry.path());
  std::sort(numbered.begin(), numbered.end());
  for (size_t i = 0; i + static_cast<size_t>(keep) < numbered.size(); ++i) fs::remove(numbered[i], error);
}

}  // namespace kinfolk
