// The order in which bytes are read: B contiguous lanes of a text, the same for every member.
#pragma once
#include <cstdint>

#include "kinfolk/core/batch.h"
#include "kinfolk/train/data/source.h"

namespace kinfolk {

/// The text is a ring of N bytes. Lane b starts at byte b * floor(N / B) and reads on, past the start of the next lane
/// and from the last byte to the first; after floor(N / B) tokens it reads what lane b + 1 read at first. So B lanes
/// see every byte at almost equal counts, and the only seam is the one from the last byte to the first.
class Lanes : public Source {
 public:
  /// Holds a reference to `text`. `documents`: the batch says where a file ends (fact "segment"), and the last byte of
  /// a file has no target. Throws UsageError when the text holds fewer than lanes * length + 1 bytes.
  Lanes(const Text& text, int64_t lanes, int64_t length, bool documents = false);

  Batch next();  ///< at the position, which moves on by `length`
  Batch at(int64_t position) const { return at(position, length_); }
  /// tokens int64 [B, L]; facts "target" [B, L] (the next byte; -100: none), "place" [B, L] (which byte of the text
  /// each is) and, when asked, "segment" [B, L], which grows at every border.
  Batch at(int64_t position, int64_t length) const override;
  bool whole() const override { return false; }

  int64_t position() const { return position_; }  ///< tokens that each lane has read
  void seek(int64_t position);                    ///< what a resumed run does
  int64_t lanes() const { return lanes_; }
  int64_t length() const { return length_; }
  int64_t pass() const { return stride_; }  ///< tokens a lane reads until all lanes together have read the text once

 private:
  const Text& text_;
  int64_t lanes_, length_, stride_, position_ = 0;
  bool documents_;
};

}  // namespace kinfolk
