#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/term.h"

namespace kinfolk {
namespace {

void add(int64_t low, int64_t high, int64_t first, int64_t last, std::vector<Stretch>& out) {
  low = std::max(low, first), high = std::min(high, last);
  if (low <= high) out.push_back({low, high});
}

struct Stride final : Term {
  explicit Stride(int64_t length) : length(length) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override { return (q_at - k_at).remainder(length).eq(0); }
  int64_t nearest() const override { return INT64_MIN; }
  int64_t farthest() const override { return INT64_MAX; }
  bool relative() const override { return true; }
  int64_t step() const override { return length; }
  std::string text() const override { return kinfolk::text("stride(", length, ")"); }
  int64_t group(int64_t, int64_t i) const override { return i % length; }
  bool has(int64_t, int64_t group, int64_t j) const override { return j % length == group; }
  void keys(int64_t, int64_t group, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    const int64_t first = low + (group - low % length + length) % length;
    if (first <= high) out.push_back({first, first + (high - first) / length * length, length});
  }
  int64_t length;
};

struct Fixed final : Term {
  Fixed(int64_t length, int64_t columns, int64_t place)
      : length(length), columns(columns), place(place), from(length - (place + 1) * columns) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override {
    const Tensor column = k_at.remainder(length);
    return column.ge(from).logical_and_(column.lt(from + columns)).logical_and(at::ones_like(q_at, at::kBool));
  }
  int64_t nearest() const override { return INT64_MIN; }
  int64_t farthest() const override { return INT64_MAX; }
  std::string text() const override {
    return kinfolk::text("fixed(", length, ", ", columns, place ? kinfolk::text(", ", place) : "", ")");
  }
  int64_t group(int64_t, int64_t) const override { return 0; }
  bool has(int64_t, int64_t, int64_t j) const override { return j % length >= from && j % length < from + columns; }
  void keys(int64_t, int64_t, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    for (int64_t block = low / length; block * length <= high; ++block)
      add(block * length + from, block * length + from + columns - 1, low, high, out);
  }
  int64_t length, columns, place, from;
};

struct BlockLocal final : Term {
  BlockLocal(int64_t queries, int64_t memory) : queries(queries), memory(memory) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override {
    const Tensor begin = q_at.div(queries, "floor") * queries;
    return k_at.ge(begin - memory).logical_and_(k_at.lt(begin + queries));
  }
  int64_t nearest() const override { return 1 - queries; }
  int64_t farthest() const override { return queries - 1 + memory; }
  std::string text() const override { return kinfolk::text("block_local(", queries, ", ", memory, ")"); }
  int64_t group(int64_t, int64_t i) const override { return i / queries; }
  bool has(int64_t, int64_t group, int64_t j) const override {
    return j >= group * queries - memory && j < (group + 1) * queries;
  }
  void keys(int64_t, int64_t group, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    add(group * queries - memory, (group + 1) * queries - 1, low, high, out);
  }
  int64_t queries, memory;
};

struct BlockWindow final : Term {
  BlockWindow(int64_t size, int64_t radius) : size(size), radius(radius) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override {
    return (q_at.div(size, "floor") - k_at.div(size, "floor")).abs().le(radius);
  }
  int64_t nearest() const override { return -farthest(); }
  int64_t farthest() const override { return times(radius + 1, size) - 1; }
  std::string text() const override { return kinfolk::text("block_window(", size, ", ", radius, ")"); }
  int64_t group(int64_t, int64_t i) const override { return i / size; }
  bool has(int64_t, int64_t group, int64_t j) const override { return std::abs(group - j / size) <= radius; }
  void keys(int64_t, int64_t group, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    add(times(std::max<int64_t>(group - radius, 0), size), add_up(times(group + radius + 1, size), -1), low, high, out);
  }
  int64_t size, radius;
};

/// Every `length` positions are n blocks, floor(r n / length); block b sees block permutation[b] of the same ones.
struct PermutedBlocks final : Term {
  PermutedBlocks(int64_t length, std::vector<int64_t> permutation, std::string words)
      : length(length), permutation(std::move(permutation)), words(std::move(words)) {
    nearest_ = INT64_MAX, farthest_ = INT64_MIN;
    for (int64_t b = 0; b < count(); ++b) {
      const int64_t other = this->permutation[static_cast<size_t>(b)];
      if (begin(b) == begin(b + 1) || begin(other) == begin(other + 1)) continue;  // more blocks than positions
      nearest_ = std::min(nearest_, begin(b) - (begin(other + 1) - 1));
      farthest_ = std::max(farthest_, begin(b + 1) - 1 - begin(other));
    }
    if (nearest_ > farthest_) nearest_ = farthest_ = 0;
  }
  int64_t count() const { return static_cast<int64_t>(permutation.size()); }
  int64_t begin(int64_t block) const { return (block * length + count() - 1) / count(); }
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override {
    const auto block = [&](const Tensor& at) { return (at.remainder(length) * count()).div(length, "floor"); };
    const Tensor other = at::tensor(permutation, q_at.options().dtype(at::kLong));
    const Tensor wanted = other.index_select(0, block(q_at).reshape({-1})).view(q_at.sizes());
    return wanted.eq(block(k_at)).logical_and(q_at.div(length, "floor").eq(k_at.div(length, "floor")));
  }
  int64_t nearest() const override { return nearest_; }
  int64_t farthest() const override { return farthest_; }
  std::string text() const override { return words; }
  int64_t group(int64_t, int64_t i) const override { return i / length * count() + i % length * count() / length; }
  bool has(int64_t, int64_t group, int64_t j) const override {
    const int64_t other = group / count() * count() + permutation[static_cast<size_t>(group % count())];
    return this->group(0, j) == other;
  }
  void keys(int64_t, int64_t group, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    const int64_t base = group / count() * length, other = permutation[static_cast<size_t>(group % count())];
    add(base + begin(other), base + begin(other + 1) - 1, low, high, out);
  }
  int64_t length;
  std::vector<int64_t> permutation;
  std::string words;
  int64_t nearest_, farthest_;
};

/// Keys in a set of positions.
struct Columns final : Term {
  Columns(const char* name, Places places) : name(name), places(std::move(places)) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override {
    return places.mask(k_at).logical_and(at::ones_like(q_at, at::kBool));
  }
  int64_t nearest() const override { return places.known ? -std::max<int64_t>(places.highest(), 0) : INT64_MIN; }
  int64_t farthest() const override { return INT64_MAX; }
  std::shared_ptr<const Pattern> with(const std::map<std::string, Tensor>& facts) const override {
    return places.fact.empty() ? nullptr : columns_term(name, places.filled(facts));
  }
  std::string text() const override { return kinfolk::text(name, "(", places.words, ")"); }
  int64_t group(int64_t, int64_t) const override { return 0; }
  bool has(int64_t lane, int64_t, int64_t j) const override { return places.has(lane, j); }
  void keys(int64_t lane, int64_t, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    for (const Stretch& one : places.of(lane)) add(one.low, one.high, low, high, out);
  }
  int64_t lanes() const override { return static_cast<int64_t>(places.lanes.size()); }
  const char* name;
  Places places;
};

/// Queries in a set of positions.
struct Rows final : Term {
  explicit Rows(Places places) : places(std::move(places)) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override {
    return places.mask(q_at).logical_and(at::ones_like(k_at, at::kBool));
  }
  int64_t nearest() const override { return INT64_MIN; }
  int64_t farthest() const override { return places.known ? std::max<int64_t>(places.highest(), 0) : INT64_MAX; }
  std::shared_ptr<const Pattern> with(const std::map<std::string, Tensor>& facts) const override {
    return places.fact.empty() ? nullptr : rows_term(places.filled(facts));
  }
  std::string text() const override { return kinfolk::text("rows(", places.words, ")"); }
  int64_t group(int64_t lane, int64_t i) const override { return places.has(lane, i); }
  bool has(int64_t, int64_t group, int64_t) const override { return group == 1; }
  void keys(int64_t, int64_t group, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    if (group == 1) add(low, high, low, high, out);
  }
  int64_t lanes() const override { return static_cast<int64_t>(places.lanes.size()); }
  Places places;
};

}  // namespace

bool Places::has(int64_t lane, int64_t position) const {
  const auto& all = of(lane);
  const auto after = std::upper_bound(all.begin(), all.end(), position,
                                      [](int64_t value, const Stretch& one) { return value < one.low; });
  return after != all.begin() && position <= std::prev(after)->high;
}

int64_t Places::highest() const {
  int64_t highest = -1;
  for (const auto& lane : lanes)
    if (!lane.empty()) highest = std::max(highest, lane.back().high);
  return highest;
}

Tensor Places::mask(const Tensor& at) const {
  std::vector<Tensor> masks;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const Tensor mine = lanes.size() > 1 && at.size(0) > 1 ? at.narrow(0, static_cast<int64_t>(lane), 1) : at;
    Tensor mask = at::zeros_like(mine, at::kBool);
    for (const Stretch& one : lanes[lane]) mask = mask.logical_or(mine.ge(one.low).logical_and_(mine.le(one.high)));
    masks.push_back(mask);
  }
  return masks.size() == 1 ? masks[0] : at::cat(masks, 0);
}

Places Places::filled(const std::map<std::string, Tensor>& facts) const {
  Places out = *this;
  out.lanes = {{}};
  out.known = true;
  const auto found = facts.find(fact);
  if (found == facts.end() || !found->second.defined()) return out;
  const Tensor given = found->second.cpu();
  const bool count = fact == "prefix";
  if (given.scalar_type() != at::kLong || given.dim() != (count ? 1 : 2)) {
    fail("[pattern] expected the fact \"", fact, "\" to be int64 [B", count ? "" : ", n", "]; found ",
         given.scalar_type(), " ", given.sizes());
  }
  out.lanes.assign(static_cast<size_t>(std::max<int64_t>(given.size(0), 1)), {});
  for (int64_t lane = 0; lane < given.size(0); ++lane) {
    auto& mine = out.lanes[static_cast<size_t>(lane)];
    if (count) {
      const int64_t n = given[lane].item<int64_t>();
      if (n < 0) fail("[pattern] expected the fact \"", fact, "\" to be at least 0; found ", n);
      if (n > 0) mine.push_back({0, n - 1});
      continue;
    }
    std::vector<int64_t> all;
    for (int64_t c = 0; c < given.size(1); ++c)
      if (const int64_t value = given[lane][c].item<int64_t>(); value >= 0) all.push_back(value);
    std::sort(all.begin(), all.end());
    for (const int64_t value : all) {
      if (!mine.empty() && value <= mine.back().high + 1) {
        mine.back().high = value;
      } else {
        mine.push_back({value, value});
      }
    }
  }
  return out;
}

std::shared_ptr<const Term> stride_term(int64_t length) { return std::make_shared<Stride>(length); }
std::shared_ptr<const Term> fixed_term(int64_t length, int64_t columns, int64_t place) {
  return std::make_shared<Fixed>(length, columns, place);
}
std::shared_ptr<const Term> block_local_term(int64_t queries, int64_t memory) {
  return std::make_shared<BlockLocal>(queries, memory);
}
std::shared_ptr<const Term> block_window_term(int64_t size, int64_t radius) {
  return std::make_shared<BlockWindow>(size, radius);
}
std::shared_ptr<const Term> permuted_blocks_term(int64_t length, std::vector<int64_t> permutation,
                                                 const std::string& words) {
  return std::make_shared<PermutedBlocks>(length, std::move(permutation), words);
}
std::shared_ptr<const Term> columns_term(const char* name, Places places) {
  return std::make_shared<Columns>(name, std::move(places));
}
std::shared_ptr<const Term> rows_term(Places places) { return std::make_shared<Rows>(std::move(places)); }

}  // namespace kinfolk
