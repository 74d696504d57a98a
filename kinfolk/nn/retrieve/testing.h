// What tests of datastores share.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "kinfolk/nn/retrieve/writer.h"

namespace kinfolk {

/// A folder of its own, removed at the end.
struct TemporaryFolder {
  std::string path;
  TemporaryFolder() {
    static int serial = 0;
    path = (std::filesystem::temp_directory_path() /
            ("kinfolk_test_" + std::to_string(getpid()) + "_" + std::to_string(serial++)))
               .string();
    std::filesystem::create_directories(path);
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path, error);
  }
  std::string operator/(const std::string& name) const { return (std::filesystem::path(path) / name).string(); }
};

inline StoreManifest manifest_of(int64_t width, int64_t vocabulary = 256, const std::string& type = "float32") {
  StoreManifest out;
  out.model = "0123456789abcdef", out.recipe = "rope", out.type = type;
  out.width = width, out.vocabulary = vocabulary;
  return out;
}

/// A store of these keys [N, D] and tokens [N], as one text.
inline std::shared_ptr<const Datastore> stored(const std::string& folder, const Tensor& keys, const Tensor& tokens,
                                               const std::string& type = "float32") {
  const bool there = Datastore::lies_in(folder);
  DatastoreWriter writer(folder, there ? read_manifest(folder) : manifest_of(keys.size(1), 256, type));
  writer.begin("a text", 7);
  writer.append(keys, tokens);
  writer.commit();
  return Datastore::open(folder);
}

}  // namespace kinfolk
