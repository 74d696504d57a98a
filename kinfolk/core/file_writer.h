// A file that appears whole or not at all.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace kinfolk {

/// Writes beside `path` under a temporary name; `commit` flushes to the disk and renames over `path`. Without a commit
/// (an error, an exception) the temporary file is removed and whatever `path` held before is untouched. Every failed
/// call throws Error "[file] PATH: expected ...; found ..." with the system's words. A file size limit (ulimit -f) is
/// such an error too: its signal is held back while the file is being written.
class FileWriter {
 public:
  explicit FileWriter(std::string path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  void commit();

 private:
  std::string path_, temporary_;
  int descriptor_ = -1;
};

/// Throws the Error that writing `path` would end with as things stand: before long work whose result goes there.
void check_writable(const std::string& path);

/// One call of the above.
void write_file(const std::string& path, std::string_view bytes);

/// Writes all bytes to an open descriptor and returns 0, or the errno of the call that failed. EFBIG instead of
/// SIGXFSZ.
int write_fully(int descriptor, const void* bytes, size_t count);

}  // namespace kinfolk
