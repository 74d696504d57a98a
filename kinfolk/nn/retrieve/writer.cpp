#include "kinfolk/nn/retrieve/writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

/// Opens the folder and keeps others from writing into it.
int hold(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("[datastore] ", folder, ": expected a folder; found ", std::strerror(errno));
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    close(descriptor);
    fail("[datastore] ", folder, ": expected that nobody writes into it; found another program at it");
  }
  return descriptor;
}

/// What an earlier writer left that did not come to its end.
void remove_leftovers(const std::string& folder, const StoreManifest& about) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    bool named = name.rfind("part-", 0) != 0;
    for (const auto& part : about.parts)
      for (const char* kind : {".keys", ".tokens", ".squares"}) named = named || name == part.name + kind;
    if (!named) fs::remove(entry.path());
  }
}

}  // namespace

DatastoreWriter::DatastoreWriter(std::string folder, StoreManifest about)
    : folder_(std::move(folder)), about_(std::move(about)), type_(key_type(about_.type)) {
  std::error_code error;
  const bool fresh = about_.parts.empty();
  if (fresh) {
    fs::create_directories(folder_, error);
    if (Datastore::lies_in(folder_)) {
      refuse("[datastore] ", folder_, ": expected a new folder; found a datastore (kinfolk datastore add adds to it)");
    }
  }
  lock_ = hold(folder_);
  if (fresh) {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().filename().string().rfind("part-", 0) != 0) {
        close(lock_);
        refuse("[datastore] ", folder_, ": expected a new or an empty folder; found ", entry.path().filename().string(),
               " in it");
      }
    }
  }
  for (const auto& part : about_.parts) first_ += part.count;
  char name[32];
  std::snprintf(name, sizeof name, "part-%05zu", about_.parts.size());
  part_.name = name;
  try {
    remove_leftovers(folder_, about_);
    const std::string stem = (fs::path(folder_) / part_.name).string();
    keys_ = std::make_unique<FileWriter>(stem + ".keys");
    tokens_ = std::make_unique<FileWriter>(stem + ".tokens");
    squares_ = std::make_unique<FileWriter>(stem + ".squares");
  } catch (...) {
    close(lock_);
    throw;
  }
}

DatastoreWriter::~DatastoreWriter() {
  if (!committed_) {
    std::error_code error;
    const std::string stem = (fs::path(folder_) / part_.name).string();
    for (const char* kind : {".keys", ".tokens", ".squares"}) fs::remove(stem + kind, error);
  }
  close(lock_);
}

void DatastoreWriter::begin(const std::string& path, int64_t token) {
  part_.texts.push_back({path, first_ + part_.count, 0, token});
}

void DatastoreWriter::append(const Tensor& hidden, const Tensor& next) {
  if (part_.texts.empty()) fail("[datastore] expected a text to begin before its entries; found none");
  if (hidden.dim() != 2 || hidden.size(1) != about_.width || next.dim() != 1 || next.size(0) != hidden.size(0)) {
    fail("[datastore] expected hidden states [n, ", about_.width, "] and tokens [n]; found ", hidden.sizes(), " and ",
         next.sizes());
  }
  if (next.numel() == 0) return;
  const Tensor ids = next.detach().to(at::kCPU, at::kLong);
  if (const auto [low, high] = at::aminmax(ids); low.item<int64_t>() < 0 || high.item<int64_t>() >= about_.vocabulary) {
    fail("[datastore] expected tokens from 0 to ", about_.vocabulary - 1, "; found ",
         low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>());
  }
  const Tensor keys = hidden.detach().to(at::kCPU, scalar_type(type_)).contiguous();
  const Tensor plain = keys.to(at::kFloat), squares = plain.square().sum(-1).contiguous();
  if (!squares.isfinite().all().item<bool>()) {
    fail("[datastore.type] expected hidden states that ", about_.type,
         " can hold; found larger ones, or none that are ", "numbers");
  }
  const Tensor tokens = ids.to(at::kInt).contiguous();
  keys_->write(keys.const_data_ptr(), keys.nbytes());
  tokens_->write(tokens.const_data_ptr(), tokens.nbytes());
  squares_->write(squares.const_data_ptr(), squares.nbytes());
  part_.texts.back().count += tokens.numel();
  part_.count += tokens.numel();
}

void DatastoreWriter::commit() {
  for (auto* file : {&keys_, &tokens_, &squares_}) (*file)->commit();
  about_.parts.push_back(part_);
  write_manifest(folder_, about_);
  committed_ = true;
}

}  // namespace kinfolk
