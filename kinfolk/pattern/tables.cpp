// Terms by tables: drawn or listed blocks, and pixels of images.
#include <unordered_set>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/term.h"

namespace kinfolk {
namespace {

/// Block row i / size sees the key blocks of `row`, in order and each once.
struct BlockRows : Term {
  explicit BlockRows(int64_t size) : size(size) {}
  virtual std::vector<int64_t> row(int64_t block) const = 0;
  int64_t group(int64_t, int64_t i) const override { return i / size; }
  bool has(int64_t, int64_t group, int64_t j) const override {
    const auto blocks = row(group);
    return std::binary_search(blocks.begin(), blocks.end(), j / size);
  }
  void keys(int64_t, int64_t group, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    for (const int64_t block : row(group)) {
      const Stretch one{std::max(low, block * size), std::min(high, block * size + size - 1)};
      if (!one.empty()) out.push_back(one);
    }
  }
  int64_t size;
};

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

struct Random final : BlockRows {
  Random(int64_t size, int64_t count, int64_t seed, std::optional<int64_t> length)
      : BlockRows(size), count(count), seed(seed), length(length) {}
  /// `count` of n blocks, each set equally likely (Floyd and Bentley 1987).
  std::vector<int64_t> row(int64_t block) const override {
    const int64_t n = length ? (*length + size - 1) / size : block;
    std::vector<int64_t> out;
    const uint64_t base = mixed(static_cast<uint64_t>(seed) ^ mixed(static_cast<uint64_t>(block)));
    for (int64_t top = std::max<int64_t>(0, n - count); top < n; ++top) {
      const auto drawn =
          static_cast<int64_t>(mixed(base + static_cast<uint64_t>(top)) % static_cast<uint64_t>(top + 1));
      const bool taken = std::find(out.begin(), out.end(), drawn) != out.end();
      out.push_back(taken ? top : drawn);
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  int64_t nearest() const override { return length ? -(*length + size) : 1; }
  int64_t farthest() const override { return INT64_MAX; }
  std::string text() const override {
    return kinfolk::text("random(", size, ", ", count, ", ", seed, length ? kinfolk::text(", ", *length) : "", ")");
  }
  int64_t count, seed;
  std::optional<int64_t> length;
};

struct BlockTable final : BlockRows {
  BlockTable(int64_t size, std::vector<std::vector<int64_t>> given) : BlockRows(size), rows(std::move(given)) {
    words = kinfolk::text("block_table(", size, ", [");
    for (size_t r = 0; r < rows.size(); ++r) {
      words += r ? ", [" : "[";
      for (size_t n = 0; n < rows[r].size(); ++n) words += kinfolk::text(n ? ", " : "", rows[r][n]);
      words += "]";
      std::sort(rows[r].begin(), rows[r].end());
      rows[r].erase(std::unique(rows[r].begin(), rows[r].end()), rows[r].end());
      for (const int64_t block : rows[r]) {
        const int64_t apart = static_cast<int64_t>(r) - block;
        lowest = std::min(lowest, (apart - 1) * size + 1);
        highest = std::max(highest, (apart + 1) * size - 1);
      }
    }
    words += "])";
    if (lowest > highest) lowest = highest = 0;
  }
  std::vector<int64_t> row(int64_t block) const override {
    return block < static_cast<int64_t>(rows.size()) ? rows[static_cast<size_t>(block)] : std::vector<int64_t>{};
  }
  int64_t nearest() const override { return lowest; }
  int64_t farthest() const override { return highest; }
  std::string text() const override { return words; }
  std::vector<std::vector<int64_t>> rows;
  std::string words;
  int64_t lowest = INT64_MAX, highest = INT64_MIN;
};

struct Local2d final : Term {
  explicit Local2d(const Grid& grid) : g(grid) {}
  struct Pixel {
    int64_t y, x;
  };
  int64_t pixels() const { return g.height * g.width; }
  int64_t across() const { return (g.width + g.block_width - 1) / g.block_width; }
  int64_t down() const { return (g.height + g.block_height - 1) / g.block_height; }
  Pixel pixel(int64_t at) const {
    if (!g.by_block) return {at / g.width, at % g.width};
    const int64_t band = at / (g.block_height * g.width),
                  tall = std::min(g.block_height, g.height - band * g.block_height);
    const int64_t rest = at - band * g.block_height * g.width, column = rest / (tall * g.block_width);
    const int64_t wide = std::min(g.block_width, g.width - column * g.block_width);
    const int64_t inside = rest - column * tall * g.block_width;
    return {band * g.block_height + inside / wide, column * g.block_width + inside % wide};
  }
  /// Rows y0..y1 and columns x0..x1 that a block of queries sees, all included.
  struct Region {
    int64_t y0, y1, x0, x1;
  };
  Region region(int64_t block) const {
    const int64_t y = block / across() * g.block_height, x = block % across() * g.block_width;
    return {std::max<int64_t>(0, y - g.top), std::min(g.height, y + g.block_height) - 1,
            std::max<int64_t>(0, x - g.side), std::min(g.width, x + g.block_width + g.side) - 1};
  }
  int64_t group(int64_t, int64_t i) const override {
    const Pixel p = pixel(i % pixels());
    return i / pixels() * across() * down() + p.y / g.block_height * across() + p.x / g.block_width;
  }
  bool has(int64_t, int64_t group, int64_t j) const override {
    if (j / pixels() != group / (across() * down())) return false;
    const Region r = region(group % (across() * down()));
    const Pixel p = pixel(j % pixels());
    return p.y >= r.y0 && p.y <= r.y1 && p.x >= r.x0 && p.x <= r.x1;
  }
  void keys(int64_t, int64_t group, int64_t low, int64_t high, std::vector<Stretch>& out) const override {
    const Region r = region(group % (across() * down()));
    const int64_t base = group / (across() * down()) * pixels();
    const auto add = [&](int64_t from, int64_t to) {
      const Stretch one{std::max(low, base + from), std::min(high, base + to)};
      if (!one.empty()) out.push_back(one);
    };
    if (!g.by_block) {
      for (int64_t y = r.y0; y <= r.y1; ++y) add(y * g.width + r.x0, y * g.width + r.x1);
      return;
    }
    for (int64_t band = r.y0 / g.block_height; band <= r.y1 / g.block_height; ++band)
      for (int64_t column = r.x0 / g.block_width; column <= r.x1 / g.block_width; ++column) {
        const int64_t y = band * g.block_height, x = column * g.block_width;
        const int64_t tall = std::min(g.block_height, g.height - y), wide = std::min(g.block_width, g.width - x);
        const int64_t begin = y * g.width + x * tall;
        for (int64_t row = std::max(y, r.y0); row <= std::min(y + tall - 1, r.y1); ++row)
          add(begin + (row - y) * wide + std::max(x, r.x0) - x,
              begin + (row - y) * wide + std::min(x + wide - 1, r.x1) - x);
      }
  }
  /// From the first key of the topmost band (or row) to the end of the own one.
  int64_t farthest() const override {
    const int64_t rows =
        g.by_block ? ((g.top + g.block_height - 1) / g.block_height + 1) * g.block_height : g.top + g.block_height;
    return std::min(pixels(), times(rows, g.width)) - 1;
  }
  int64_t nearest() const override { return 1 - std::min(pixels(), times(g.block_height, g.width)); }
  std::string text() const override {
    return kinfolk::text("local2d(", g.height, ", ", g.width, ", ", g.block_height, ", ", g.block_width, ", ", g.top,
                         ", ", g.side, ", ", g.by_block ? "block" : "raster", ")");
  }
  Grid g;
};

}  // namespace

std::shared_ptr<const Term> random_term(int64_t size, int64_t count, int64_t seed, std::optional<int64_t> length) {
  return std::make_shared<Random>(size, count, seed, length);
}
std::shared_ptr<const Term> block_table_term(int64_t size, std::vector<std::vector<int64_t>> rows) {
  return std::make_shared<BlockTable>(size, std::move(rows));
}
std::shared_ptr<const Term> local_2d_term(const Grid& grid) { return std::make_shared<Local2d>(grid); }

}  // namespace kinfolk
