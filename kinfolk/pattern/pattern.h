// Which pairs may meet: a value, parsed from text such as "causal & (window(129) | stride(128))".
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinfolk/core/value.h"

namespace kinfolk {
using at::Tensor;

/// Positions low, low + step, ... up to high, which is included.
struct Stretch {
  int64_t low = 0, high = -1, step = 1;
  bool empty() const { return low > high; }
  int64_t count() const { return empty() ? 0 : (high - low) / step + 1; }
};

struct Pattern {
  virtual ~Pattern() = default;
  /// The meaning: bool, shaped like the broadcast of q_at and k_at (int64; for example [B, 1, Lq, 1] and [B, 1, 1,
  /// Lk]). Of positions from 0 on; what it says of others is not used. A pattern with facts that differ between lanes
  /// wants four dimensions, the lanes first, and gives a result for all of them.
  virtual Tensor sees(const Tensor& q_at, const Tensor& k_at) const = 0;
  /// Distances i - j of visible pairs lie in [nearest, farthest]; causal patterns have nearest >= 0.
  virtual int64_t nearest() const = 0;
  virtual int64_t farthest() const = 0;
  /// Whether the pattern is exactly nearest() <= i - j <= farthest(), so that a mask is two comparisons.
  virtual bool interval() const { return false; }
  /// Whether only i - j counts, not where the pair stands.
  virtual bool relative() const { return interval(); }
  /// False only where no query of the first stretch sees a key of the second in any lane.
  virtual bool may_see(const Stretch& queries, const Stretch& keys) const;
  /// The pattern with what it reads from the facts of a batch filled in; null: it reads none.
  virtual std::shared_ptr<const Pattern> with(const std::map<std::string, Tensor>&) const { return nullptr; }
  virtual std::string text() const = 0;  ///< parses back to an equal pattern

  bool causal() const { return nearest() >= 0; }
  /// How many of the newest keys (the own one included) a causal query can ever see; none: all of them.
  std::optional<int64_t> horizon() const {
    if (farthest() == INT64_MAX) return {};
    return farthest() < 0 ? 0 : farthest() + 1;
  }
};

/// Terms, with i a query, j a key, and / rounding down:
///   causal                  j <= i
///   full                    every pair
///   window(w)               |i-j| < w: w keys on each side, the own one included in both; with causal w keys (Beltagy
///                           et al. 2020)
///   distance(low, high)     low <= i-j <= high; `any` for no limit
///   dilated(w, step)        |i-j| < w step and step divides i-j (Beltagy et al. 2020)
///   stride(l)               l divides i-j: the second half of the strided pattern; the first is window(l + 1) (Child
///   et
///                           al. 2019)
///   fixed(l, c[, m])        j mod l in [l - (m+1) c, l - m c): the second half of the fixed pattern, m = 0 unless
///   heads
///                           take distinct columns; the first is block_local(l, 0) (Child et al. 2019)
///   block_local(q, m)       (i/q) q - m <= j < (i/q + 1) q: blocks of q queries, m keys before (Parmar et al. 2018)
///   block_window(b, r)      |i/b - j/b| <= r (Zaheer et al. 2020)
///   local2d(h, w, qh, qw, top, side, raster|block)   pixels of h x w images, one after the other, in this order: keys
///                           in the qh x qw block of i, enlarged by `top` rows above and `side` columns on both sides
///                           (Parmar et al. 2018)
///   blocks(n, N, shift)     every N positions are n blocks; block b sees block (b + shift) mod n (Qiu et al. 2019)
///   blocks(n, N, [p0, ..])  block b sees block p_b
///   columns(set), rows(set) j, or i, in a set of positions: a number n (0 to n-1), a list [0, 17, 32:40], or
///                           @global, the batch's fact "global" (int64 [B, n], -1: none)
///   global(set)             columns(set) | rows(set) (Beltagy et al. 2020)
///   prefix(n), prefix(@prefix)   j < n; the batch's fact "prefix" (int64 [B]), without which it is empty
///   random(b, r, seed)      block i/b sees r of the blocks before it, drawn for each block row from the seed alone
///                           (fewer where there are fewer): the causal form of Zaheer et al. 2020, the same at every
///                           length
///   random(b, r, seed, N)   r of all blocks of the first N positions: the published form at length N
///   block_table(b, [[..], ..])   block row i/b sees the listed key blocks
/// joined by & (binds tighter) and | with parentheses. Names in place of an integer refer to `let`. Throws UsageError
/// with the text, a caret under the fault and the nearest known word.
std::shared_ptr<const Pattern> parse_pattern(const std::string& text, const Value* let = nullptr,
                                             const Place& place = {});

/// What `pattern` is for one batch of `lanes` lanes (-1: any number): the facts it reads are filled in.
std::shared_ptr<const Pattern> fill_in(const std::shared_ptr<const Pattern>& pattern,
                                       const std::map<std::string, Tensor>& facts, int64_t lanes = -1);

}  // namespace kinfolk
