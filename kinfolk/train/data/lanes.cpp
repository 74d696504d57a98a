#include "kinfolk/train/data/lanes.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kinfolk/core/errors.h"

namespace kinfolk {

Lanes::Lanes(const Text& text, int64_t lanes, int64_t length, bool documents)
    : text_(text), lanes_(lanes), length_(length), stride_(0), documents_(documents) {
  if (lanes < 1) refuse("[train.lanes] expected at least 1; found ", lanes);
  if (length < 1) refuse("[train.length] expected at least 1; found ", length);
  if (length > (text.size() - 1) / lanes) {
    refuse("[data] expected at least ", lanes, " lanes x ", length, " tokens + 1 bytes; found ", text.size(),
           " (fewer lanes, a shorter length or more text)");
  }
  stride_ = text.size() / lanes;
}

Batch Lanes::next() {
  Batch batch = at(position_);
  position_ += length_;
  return batch;
}

Batch Lanes::at(int64_t position, int64_t length) const {
  const int64_t size = text_.size();
  const auto& ends = text_.documents;
  const Tensor tokens = at::empty({lanes_, length}, at::kLong), target = at::empty({lanes_, length}, at::kLong);
  const Tensor place = at::empty({lanes_, length}, at::kLong);
  Tensor segment;
  if (documents_) segment = at::empty({lanes_, length}, at::kLong);
  for (int64_t lane = 0; lane < lanes_; ++lane) {
    const int64_t start = lane * stride_ + position;
    int64_t ring = start / size, byte = start % size;
    auto* token = tokens.data_ptr<int64_t>() + lane * length;
    auto* next = target.data_ptr<int64_t>() + lane * length;
    auto* where = place.data_ptr<int64_t>() + lane * length;
    auto* border = documents_ ? segment.data_ptr<int64_t>() + lane * length : nullptr;
    auto document = std::upper_bound(ends.begin(), ends.end(), byte,
                                     [](int64_t value, const Document& d) { return value < d.end; }) -
                    ends.begin();
    for (int64_t i = 0; i < length; ++i) {
      token[i] = text_.bytes[static_cast<size_t>(byte)];
      where[i] = byte;
      if (border) border[i] = ring * static_cast<int64_t>(ends.size()) + document;
      const bool last = ++byte == ends[static_cast<size_t>(document)].end;
      if (last) ++document;
      if (byte == size) byte = 0, document = 0, ++ring;
      next[i] = last && border ? -100 : text_.bytes[static_cast<size_t>(byte)];
    }
  }
  Batch batch{tokens, {{"target", target}, {"place", place}}};
  if (documents_) batch.facts["segment"] = segment;
  return batch;
}

void Lanes::seek(int64_t position) {
  if (position < 0) fail("[data] expected a position of at least 0; found ", position);
  position_ = position;
}

}  // namespace kinfolk
