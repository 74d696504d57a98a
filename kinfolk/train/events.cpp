#include "kinfolk/train/events.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"

namespace kinfolk {
namespace {

// Wire types of protobuf.
constexpr uint64_t kVarint = 0, kDouble = 1, kBytes = 2, kFloat = 5;
// Fields of the messages Event, Summary and Summary.Value.
constexpr uint64_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kValue = 1, kTag = 1, kSimpleValue = 2;

template <class Value>
std::string raw(Value value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes += static_cast<char>(value);
}

std::string key(uint64_t field, uint64_t type) { return varint(field << 3 | type); }
std::string field(uint64_t number, std::string_view bytes) {
  return key(number, kBytes) + varint(bytes.size()) + std::string(bytes);
}

std::string now() {
  const std::chrono::duration<double> since = std::chrono::system_clock::now().time_since_epoch();
  return key(kWallTime, kDouble) + raw(since.count());
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit) t[i] = t[i] & 1 ? 0x82F63B78u ^ (t[i] >> 1) : t[i] >> 1;
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (unsigned char byte : bytes) crc = table[(crc ^ byte) & 255] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

EventWriter::EventWriter(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("[events] ", folder, ": expected a folder that can be made; found ", error.message());
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  static std::atomic<unsigned> serial = 0;
  path_ =
      (std::filesystem::path(folder) / text("events.out.tfevents.", seconds, ".", host, ".", getpid(), ".", serial++))
          .string();
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("[events] ", path_, ": expected a new file; found ", std::strerror(errno));
  record(now() + field(kFileVersion, "brain.Event:2"));
}

EventWriter::~EventWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

void EventWriter::scalar(std::string_view tag, double value, int64_t step) {
  const std::string entry = field(kTag, tag) + key(kSimpleValue, kFloat) + raw(static_cast<float>(value));
  record(now() + key(kStep, kVarint) + varint(static_cast<uint64_t>(step)) + field(kSummary, field(kValue, entry)));
}

/// TFRecord: length, its checksum, the event, its checksum.
void EventWriter::record(const std::string& event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  const std::string bytes = length + raw(masked_crc32c(length)) + event + raw(masked_crc32c(event));
  if (const int error = write_fully(descriptor_, bytes.data(), bytes.size()))
    fail("[events] ", path_, ": expected room to write it; found ", std::strerror(error));
}

}  // namespace kinfolk
