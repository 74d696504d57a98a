// Which blocks of queries and keys can meet at all, and what must be checked where they do: read once a call from the
// positions, on the host. Part of attend; not a public header.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kinfolk/ops/attend.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {

struct Span {
  int64_t low = INT64_MAX, high = INT64_MIN;
  bool empty() const { return low > high; }
  void add(int64_t value) { low = std::min(low, value), high = std::max(high, value); }
  void add(const Span& other) { low = std::min(low, other.low), high = std::max(high, other.high); }
};

/// An int64 [lanes, tokens] tensor as the host reads it; all lanes at one place when they are alike.
class HostRows {
 public:
  HostRows() = default;
  explicit HostRows(const Tensor& rows);
  bool defined() const { return data_ != nullptr || lanes_ > 0; }
  bool alike() const { return alike_; }
  const int64_t* row(int64_t lane) const { return data_ ? data_ + (alike_ ? 0 : lane * stride_) : nullptr; }

 private:
  Tensor held_;
  const int64_t* data_ = nullptr;
  int64_t lanes_ = 0, stride_ = 0;
  bool alike_ = true;
};

/// What is known of a block of queries and a block of keys.
struct Meeting {
  bool any = false;                                                          ///< some pair may see each other
  int64_t nearest = INT64_MAX, farthest = INT64_MIN;                         ///< distances of the pairs that may
  bool pattern = false, validity = false, document = false, limits = false;  ///< which of them must be checked by pair
  bool masked() const { return pattern || validity || document || limits; }
};

class Layout {
 public:
  Layout() = default;
  Layout(const Pattern& pattern, const Tensor& q_at, const Tensor& q_document, const std::vector<Keys>& keys,
         int64_t query_block, int64_t key_block);

  bool alike() const { return lanes_ == 1; }  ///< one lane stands for all
  int64_t lanes() const { return lanes_; }
  Meeting meet(int64_t query_block, size_t set, int64_t key_block) const;
  Meeting all() const;  ///< all queries and all keys of all sets
  int64_t query_blocks() const { return query_blocks_; }
  int64_t key_blocks(size_t set) const { return sets_[set].blocks; }

  struct Set {
    HostRows at, document, from, until;
    int64_t length = 0, blocks = 0;
    std::vector<Span> spans, documents;         ///< [blocks + 1, lanes]; the last block is all of them
    std::vector<char> valid;                    ///< 1: no key of the block is invalid
    std::vector<Span> from_spans, until_spans;  ///< [query blocks + 1, lanes]
  };
  const HostRows& q_at() const { return q_at_; }
  const HostRows& q_document() const { return q_document_; }
  const Set& set(size_t index) const { return sets_[index]; }

 private:
  void meet_lane(Meeting& out, int64_t query, const Set& set, int64_t key, int64_t lane) const;

  const Pattern* pattern_ = nullptr;  ///< of the call that the layout is part of
  int64_t nearest_ = INT64_MIN, farthest_ = INT64_MAX;
  bool interval_ = true;
  int64_t lanes_ = 1, query_blocks_ = 0;
  HostRows q_at_, q_document_;
  std::vector<Span> q_spans_, q_documents_;  ///< [query blocks + 1, lanes]
  std::vector<char> q_valid_;
  std::vector<Set> sets_;
};

}  // namespace kinfolk
