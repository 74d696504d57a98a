#include "kinfolk/core/file_writer.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

/// Blocks SIGXFSZ in this thread; what arrived meanwhile is swallowed, since write() has already answered EFBIG.
class HoldFileSizeSignal {
 public:
  HoldFileSizeSignal() {
    sigemptyset(&limit_);
    sigaddset(&limit_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit_, &before_);
  }
  ~HoldFileSizeSignal() {
    if (sigismember(&before_, SIGXFSZ)) return;
    const timespec now = {0, 0};
    while (sigtimedwait(&limit_, nullptr, &now) == -1 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t limit_, before_;
};

[[noreturn]] void fail_with(const std::string& path, const char* expected, int error) {
  fail("[file] ", path, ": expected ", expected, "; found ", std::strerror(error));
}

/// A folder on a file system that cannot sync says EINVAL: nothing to do about it.
int sync(int descriptor) { return fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno; }

}  // namespace

int write_fully(int descriptor, const void* bytes, size_t count) {
  HoldFileSizeSignal hold;
  const char* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::write(descriptor, at, std::min(count, size_t(1) << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    at += written;
    count -= static_cast<size_t>(written);
  }
  return 0;
}

FileWriter::FileWriter(std::string path) : path_(std::move(path)) {
  static std::atomic<unsigned> serial = 0;
  temporary_ = text(path_, ".", getpid(), ".", serial++, ".tmp");
  descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ < 0) fail_with(path_, "a folder that can be written", errno);
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void FileWriter::write(const void* bytes, size_t count) {
  if (const int error = write_fully(descriptor_, bytes, count)) fail_with(path_, "room to write it", error);
}

void FileWriter::commit() {
  if (const int error = sync(descriptor_)) fail_with(path_, "its bytes to reach the disk", error);
  const int closed = close(descriptor_) == 0 ? 0 : errno;
  descriptor_ = -1;
  if (closed != 0 && closed != EINTR) fail_with(path_, "its bytes to reach the disk", closed);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with(path_, "a name that can be replaced", errno);
  temporary_.clear();
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int parent = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return;  // a folder that may be written but not read: the rename stands, only its moment is unsure
  const int error = sync(parent);
  close(parent);
  if (error) fail_with(path_, "its folder to reach the disk", error);
}

void check_writable(const std::string& path) {
  const FileWriter probe(path);
  if (std::filesystem::is_directory(path)) fail_with(path, "a name that can be replaced", EISDIR);
}

void write_file(const std::string& path, std::string_view bytes) {
  FileWriter file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace kinfolk
