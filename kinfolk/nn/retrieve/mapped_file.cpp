#include "kinfolk/nn/retrieve/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kinfolk/core/errors.h"

namespace kinfolk {

MappedFile::MappedFile(const std::string& path, size_t bytes) : bytes_(bytes) {
  const auto wrong = [&](const std::string& found) {
    fail("[datastore] ", path, ": expected a file of ", bytes, " bytes; found ", found);
  };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) wrong(std::strerror(errno));
  struct stat about = {};
  if (fstat(descriptor, &about) != 0 || static_cast<size_t>(about.st_size) != bytes) {
    close(descriptor);
    wrong(text("one of ", about.st_size));
  }
  if (bytes == 0) {
    close(descriptor);
    return;
  }
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  const int error = errno;
  close(descriptor);
  if (mapped == MAP_FAILED) wrong(std::strerror(error));
  data_ = static_cast<const char*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<char*>(data_), bytes_);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace kinfolk
