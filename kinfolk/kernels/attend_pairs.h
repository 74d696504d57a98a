// Which pairs of a tile a pattern shows that is more than an interval of distances.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace kinfolk::kernels {

struct Attend;

/// One bit a key of a tile.
using PairBits = std::array<uint64_t, 2>;

/// A pattern as the kernel asks for it, from any thread.
struct AttendPattern {
  virtual ~AttendPattern() = default;
  /// 1: all lanes are alike.
  virtual int64_t lanes() const = 0;
  /// False only where no query at a position in [low, high] sees a key in [first, last].
  virtual bool may_see(int64_t low, int64_t high, int64_t first, int64_t last) const = 0;
  /// Sets bits[r] for a query at q_at[r] (below 0: whatever) and keys at k_at, all of them valid; `in_order`: these
  /// grow by one.
  virtual void see(int64_t lane, const int64_t* q_at, int64_t rows, const int64_t* k_at, int64_t columns, bool in_order,
                   PairBits* bits) const = 0;
};

/// What a pattern shows of each tile of a call, read once for all heads and both passes; tiles beyond a limit are read
/// each time anew, so that memory stays small.
class PairTiles {
 public:
  enum Kind : int32_t { none = -1, all = -2, unknown = -3 };
  explicit PairTiles(const Attend& a);
  /// Whether even a place a tile is little memory.
  static bool fits(const Attend& a);
  /// A kind, or the tile's place for `bits`.
  int32_t find(int64_t lane, int64_t query_tile, size_t set, int64_t key_tile) const;
  const PairBits* bits(int32_t place) const { return bits_.data() + starts_[static_cast<size_t>(place)]; }
  int64_t bytes() const { return static_cast<int64_t>(bits_.size() * sizeof(PairBits) + places_.size() * 4); }

 private:
  int32_t keep(const PairBits* bits, int64_t rows);

  int64_t lanes_ = 1, query_tiles_ = 0;
  std::vector<std::vector<int64_t>> first_, count_;  ///< of the places of a lane's set, and its key tiles
  std::vector<int32_t> places_;
  std::vector<size_t> starts_, rows_;
  std::vector<PairBits> bits_;
  std::vector<int32_t> heads_;  ///< places by hash
};

}  // namespace kinfolk::kernels
