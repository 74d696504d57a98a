// The parts that patterns are made of, as views and masks see them.
#pragma once
#include <algorithm>

#include "kinfolk/pattern/pattern.h"

namespace kinfolk {

/// nearest <= i - j <= farthest.
struct Interval final : Pattern {
  Interval(int64_t nearest, int64_t farthest, std::string text = "")
      : nearest_(nearest), farthest_(farthest), text_(std::move(text)) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override;
  int64_t nearest() const override { return nearest_; }
  int64_t farthest() const override { return farthest_; }
  bool interval() const override { return true; }
  std::string text() const override;

 private:
  int64_t nearest_, farthest_;
  std::string text_;
};

/// A pattern in which the queries of a group see the same keys.
struct Term : Pattern {
  virtual int64_t group(int64_t lane, int64_t i) const = 0;
  virtual bool has(int64_t lane, int64_t group, int64_t j) const = 0;
  /// Appends the keys of a group within [low, high], low >= 0, as disjoint stretches.
  virtual void keys(int64_t lane, int64_t group, int64_t low, int64_t high, std::vector<Stretch>& out) const = 0;
  virtual int64_t lanes() const { return 1; }  ///< 1: all lanes are alike
  virtual int64_t step() const { return 1; }   ///< divides every difference between positions of one group and its keys
  bool may_see(const Stretch& queries, const Stretch& keys) const override;
  /// By `group` and `has`, pair by pair on the host.
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override;
};

/// Both patterns, or either of them.
struct Both final : Pattern {
  Both(std::shared_ptr<const Pattern> a, std::shared_ptr<const Pattern> b) : a(std::move(a)), b(std::move(b)) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override;
  int64_t nearest() const override { return std::max(a->nearest(), b->nearest()); }
  int64_t farthest() const override { return std::min(a->farthest(), b->farthest()); }
  bool interval() const override { return a->interval() && b->interval(); }
  bool relative() const override { return a->relative() && b->relative(); }
  bool may_see(const Stretch& queries, const Stretch& keys) const override;
  std::shared_ptr<const Pattern> with(const std::map<std::string, Tensor>& facts) const override;
  std::string text() const override;
  const std::shared_ptr<const Pattern> a, b;
};
struct Either final : Pattern {
  Either(std::shared_ptr<const Pattern> a, std::shared_ptr<const Pattern> b) : a(std::move(a)), b(std::move(b)) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override;
  int64_t nearest() const override { return std::min(a->nearest(), b->nearest()); }
  int64_t farthest() const override { return std::max(a->farthest(), b->farthest()); }
  bool interval() const override;
  bool relative() const override { return a->relative() && b->relative(); }
  bool may_see(const Stretch& queries, const Stretch& keys) const override;
  std::shared_ptr<const Pattern> with(const std::map<std::string, Tensor>& facts) const override;
  std::string text() const override { return a->text() + " | " + b->text(); }
  const std::shared_ptr<const Pattern> a, b;
};

/// Another pattern under a name of its own.
struct Named final : Pattern {
  Named(std::string name, std::shared_ptr<const Pattern> inner) : inner(std::move(inner)), name_(std::move(name)) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override { return inner->sees(q_at, k_at); }
  int64_t nearest() const override { return inner->nearest(); }
  int64_t farthest() const override { return inner->farthest(); }
  bool interval() const override { return inner->interval(); }
  bool relative() const override { return inner->relative(); }
  bool may_see(const Stretch& queries, const Stretch& keys) const override { return inner->may_see(queries, keys); }
  std::shared_ptr<const Pattern> with(const std::map<std::string, Tensor>& facts) const override;
  std::string text() const override { return name_; }
  const std::shared_ptr<const Pattern> inner;

 private:
  std::string name_;
};

/// Positions as disjoint stretches in order: the same for all lanes, or one set a lane, or a fact that is not known
/// yet.
struct Places {
  std::vector<std::vector<Stretch>> lanes = {{}};
  std::string fact;  ///< its name where it comes from one
  bool known = true;
  std::string words;  ///< as written

  const std::vector<Stretch>& of(int64_t lane) const { return lanes.size() == 1 ? lanes[0] : lanes.at(lane); }
  bool has(int64_t lane, int64_t position) const;
  int64_t highest() const;  ///< over all lanes; -1: there are none
  Tensor mask(const Tensor& at) const;
  /// The fact "prefix" is a number of positions a lane, others are positions.
  Places filled(const std::map<std::string, Tensor>& facts) const;
};

std::shared_ptr<const Term> stride_term(int64_t length);
std::shared_ptr<const Term> fixed_term(int64_t length, int64_t columns, int64_t place);
std::shared_ptr<const Term> block_local_term(int64_t queries, int64_t memory);
std::shared_ptr<const Term> block_window_term(int64_t size, int64_t radius);
std::shared_ptr<const Term> permuted_blocks_term(int64_t length, std::vector<int64_t> permutation,
                                                 const std::string& words);
std::shared_ptr<const Term> columns_term(const char* name, Places places);
std::shared_ptr<const Term> rows_term(Places places);
std::shared_ptr<const Term> random_term(int64_t size, int64_t count, int64_t seed, std::optional<int64_t> length);
std::shared_ptr<const Term> block_table_term(int64_t size, std::vector<std::vector<int64_t>> rows);
struct Grid {
  int64_t height, width, block_height, block_width, top, side;
  bool by_block;
};
std::shared_ptr<const Term> local_2d_term(const Grid& grid);

/// a + b and a * b, or the largest integer.
int64_t add_up(int64_t a, int64_t b);
int64_t times(int64_t a, int64_t b);

}  // namespace kinfolk
