// A file that is read as if it were memory.
#pragma once
#include <cstddef>
#include <string>

namespace kinfolk {

/// Maps a whole file for reading: its pages come from the disk when they are touched, and go when memory is short, so
/// that a file may be larger than memory. Whoever cuts the file while it is mapped ends the program; files that appear
/// whole and are never written again (FileWriter) are safe.
class MappedFile {
 public:
  MappedFile() = default;  ///< nothing
  /// Throws Error "[datastore] PATH: expected ...; found ..." when it cannot be read or is not of this many bytes.
  MappedFile(const std::string& path, size_t bytes);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;

  const char* data() const { return data_; }  ///< null of an empty file
  size_t bytes() const { return bytes_; }

 private:
  const char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kinfolk
