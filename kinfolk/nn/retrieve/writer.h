// Writes a datastore, or another part of one.
#pragma once
#include <memory>
#include <string>

#include "kinfolk/core/file_writer.h"
#include "kinfolk/nn/retrieve/datastore.h"

namespace kinfolk {

/// Holds the folder for itself until it ends. Entries become part of the datastore with `commit`, all together; an end
/// before that, however sudden, leaves the datastore as it was (files that no manifest names are removed by the next
/// writer).
class DatastoreWriter {
 public:
  /// `about` without parts: a new datastore; refuses a folder that holds one, or anything else. With parts, as
  /// read_manifest gives it: adds to the one that lies there.
  DatastoreWriter(std::string folder, StoreManifest about);
  ~DatastoreWriter();
  DatastoreWriter(const DatastoreWriter&) = delete;
  DatastoreWriter& operator=(const DatastoreWriter&) = delete;

  /// The following entries are of this text; `token` is its first.
  void begin(const std::string& path, int64_t token);
  /// Hidden states [n, D] and the tokens [n] that followed, in the order of the text.
  void append(const Tensor& hidden, const Tensor& next);
  void commit();
  int64_t appended() const { return part_.count; }

 private:
  std::string folder_;
  StoreManifest about_;
  StoreManifest::Part part_;
  int64_t first_ = 0;  // entry that this part begins with
  kernels::KeyType type_;
  int lock_ = -1;
  bool committed_ = false;
  std::unique_ptr<FileWriter> keys_, tokens_, squares_;
};

}  // namespace kinfolk
