#include "kinfolk/ops/attend_layout.h"

namespace kinfolk {
namespace {

int64_t count_blocks(int64_t length, int64_t block) { return (length + block - 1) / block; }

/// Spans of `values` over the valid tokens of each block and, last, over all of them.
std::vector<Span> spans_of(const HostRows& values, const HostRows& at, int64_t length, int64_t block, int64_t lanes) {
  const int64_t blocks = count_blocks(length, block);
  std::vector<Span> out(static_cast<size_t>((blocks + 1) * lanes));
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t* value = values.row(lane);
    const int64_t* valid = at.row(lane);
    Span& whole = out[static_cast<size_t>(blocks * lanes + lane)];
    for (int64_t b = 0; b < blocks; ++b) {
      Span span;
      for (int64_t i = b * block; i < std::min(length, (b + 1) * block); ++i)
        if (valid[i] >= 0) span.add(value[i]);
      out[static_cast<size_t>(b * lanes + lane)] = span;
      whole.add(span);
    }
  }
  return out;
}

std::vector<char> valid_of(const HostRows& at, int64_t length, int64_t block, int64_t lanes) {
  const int64_t blocks = count_blocks(length, block);
  std::vector<char> out(static_cast<size_t>((blocks + 1) * lanes), 1);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t* row = at.row(lane);
    for (int64_t i = 0; i < length; ++i)
      if (row[i] < 0) {
        out[static_cast<size_t>(i / block * lanes + lane)] = 0;
        out[static_cast<size_t>(blocks * lanes + lane)] = 0;
      }
  }
  return out;
}

}  // namespace

HostRows::HostRows(const Tensor& rows) {
  if (!rows.defined()) return;
  held_ = rows.is_cpu() ? rows : rows.cpu();
  if (held_.size(1) > 1 && held_.stride(1) != 1) held_ = held_.contiguous();
  data_ = held_.numel() > 0 ? held_.const_data_ptr<int64_t>() : nullptr;
  lanes_ = held_.size(0);
  stride_ = held_.stride(0);
  const int64_t length = held_.size(1);
  for (int64_t lane = 1; lane < lanes_ && alike_ && stride_ != 0 && data_; ++lane)
    alike_ = std::equal(data_, data_ + length, data_ + lane * stride_);
}

Layout::Layout(const Pattern& pattern, const Tensor& q_at, const Tensor& q_document, const std::vector<Keys>& keys,
               int64_t query_block, int64_t key_block)
    : pattern_(&pattern),
      nearest_(pattern.nearest()),
      farthest_(pattern.farthest()),
      interval_(pattern.interval()),
      q_at_(q_at),
      q_document_(q_document) {
  const int64_t length = q_at.size(1);
  query_blocks_ = count_blocks(length, query_block);
  bool alike = q_at_.alike() && q_document_.alike();
  for (const Keys& key : keys) {
    Set set;
    set.at = HostRows(key.at);
    if (q_document.defined()) set.document = HostRows(key.document);
    set.from = HostRows(key.from);
    set.until = HostRows(key.until);
    set.length = key.at.size(1);
    set.blocks = count_blocks(set.length, key_block);
    alike = alike && set.at.alike() && set.document.alike() && set.from.alike() && set.until.alike();
    sets_.push_back(std::move(set));
  }
  lanes_ = alike ? std::min<int64_t>(q_at.size(0), 1) : q_at.size(0);
  q_spans_ = spans_of(q_at_, q_at_, length, query_block, lanes_);
  q_valid_ = valid_of(q_at_, length, query_block, lanes_);
  if (q_document_.defined()) q_documents_ = spans_of(q_document_, q_at_, length, query_block, lanes_);
  for (Set& set : sets_) {
    set.spans = spans_of(set.at, set.at, set.length, key_block, lanes_);
    set.valid = valid_of(set.at, set.length, key_block, lanes_);
    if (set.document.defined()) set.documents = spans_of(set.document, set.at, set.length, key_block, lanes_);
    if (set.from.defined()) set.from_spans = spans_of(set.from, q_at_, length, query_block, lanes_);
    if (set.until.defined()) set.until_spans = spans_of(set.until, q_at_, length, query_block, lanes_);
  }
}

void Layout::meet_lane(Meeting& out, int64_t query, const Set& set, int64_t key, int64_t lane) const {
  const auto q = static_cast<size_t>(query * lanes_ + lane), k = static_cast<size_t>(key * lanes_ + lane);
  out.validity = out.validity || !q_valid_[q] || !set.valid[k];
  const Span &at = q_spans_[q], &keys = set.spans[k];
  if (at.empty() || keys.empty()) return;
  const int64_t low = at.low - keys.high, high = at.high - keys.low;
  out.pattern = out.pattern || !interval_ || low < nearest_ || high > farthest_;
  if (std::max(low, nearest_) > std::min(high, farthest_)) return;
  if (!interval_ && !pattern_->may_see({at.low, at.high}, {keys.low, keys.high})) return;
  if (!set.documents.empty()) {
    const Span &mine = q_documents_[q], &theirs = set.documents[k];
    out.document = out.document || mine.low != theirs.high || mine.high != theirs.low;
    if (mine.low > theirs.high || mine.high < theirs.low) return;
  }
  if (!set.from_spans.empty()) {
    out.limits = out.limits || keys.low < set.from_spans[q].high;
    if (keys.high < set.from_spans[q].low) return;
  }
  if (!set.until_spans.empty()) {
    out.limits = out.limits || keys.high >= set.until_spans[q].low;
    if (keys.low >= set.until_spans[q].high) return;
  }
  out.any = true;
  out.nearest = std::min(out.nearest, std::max(low, nearest_));
  out.farthest = std::max(out.farthest, std::min(high, farthest_));
}

Meeting Layout::meet(int64_t query_block, size_t set, int64_t key_block) const {
  Meeting out;
  for (int64_t lane = 0; lane < lanes_; ++lane) meet_lane(out, query_block, sets_[set], key_block, lane);
  return out;
}

Meeting Layout::all() const {
  Meeting out;
  for (const Set& set : sets_)
    for (int64_t lane = 0; lane < lanes_; ++lane) meet_lane(out, query_blocks_, set, set.blocks, lane);
  return out;
}

}  // namespace kinfolk
