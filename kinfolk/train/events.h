// TensorBoard event files, scalars only, without protobuf.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace kinfolk {

/// CRC-32C (Castagnoli), rotated and offset as the record format wants it.
uint32_t masked_crc32c(std::string_view bytes);

/// One event file `events.out.tfevents.SECONDS.HOST.PID.N` in a folder; a resumed run adds another, and TensorBoard
/// joins them. Every record is written at once, so that a run that is killed loses nothing. Throws Error "[events] ..."
/// when the folder cannot be made or the disk is full.
class EventWriter {
 public:
  explicit EventWriter(const std::string& folder);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// Tags with slashes ("loss/train") are shown in groups. `step` is at least 0; TensorBoard's step axis.
  void scalar(std::string_view tag, double value, int64_t step);
  const std::string& path() const { return path_; }

 private:
  void record(const std::string& event);

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace kinfolk
