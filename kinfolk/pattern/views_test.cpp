// The law of views: their union is the pattern, and no pair is in two of them.
#include "kinfolk/pattern/views.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/draw.h"
#include "tests/support/patterns.h"

namespace kinfolk {
namespace {

/// Pairs of queries q..q+m-1 and keys 0..n-1 by both faces of a view: membership, and groups with their keys.
void expect_law(const std::shared_ptr<const Pattern>& pattern, int64_t first, int64_t m, int64_t n) {
  const auto views = compile(pattern, {first, first + m - 1}, {0, n - 1});
  if (!views) return;
  int64_t lanes = 1;
  for (const View& view : *views) lanes = std::max(lanes, view.lanes());
  const Tensor q = at::arange(first, first + m, at::kLong).view({1, 1, m, 1}),
               k = at::arange(n, at::kLong).view({1, 1, 1, n});
  const Tensor want = pattern->sees(q, k).expand({lanes, 1, m, n}).contiguous();
  for (int64_t lane = 0; lane < lanes; ++lane)
    for (int64_t i = 0; i < m; ++i) {
      std::vector<int> times(static_cast<size_t>(n));
      for (const View& view : *views) {
        const auto groups = view.groups(lane, first + i);
        std::vector<char> listed(static_cast<size_t>(n));
        if (!view.band()) {
          for (const int64_t j : view.keys(lane, groups, 0, n - 1)) {
            ASSERT_FALSE(listed[static_cast<size_t>(j)]) << view.text();
            listed[static_cast<size_t>(j)] = 1;
          }
        }
        for (int64_t j = 0; j < n; ++j) {
          const bool sees = view.sees(lane, first + i, j);
          times[static_cast<size_t>(j)] += sees;
          const int64_t distance = first + i - j;
          const bool near = distance >= view.nearest && distance <= view.farthest;
          if (!view.band() && near) {
            ASSERT_EQ(listed[static_cast<size_t>(j)], sees) << view.text() << " at " << first + i << ", " << j;
          }
        }
      }
      for (int64_t j = 0; j < n; ++j)
        ASSERT_EQ(times[static_cast<size_t>(j)], want[lane][0][i][j].item<bool>())
            << pattern->text() << " at " << first + i << ", " << j << " in lane " << lane;
    }
}

TEST(Views, UnionIsThePatternAndNoPairIsTwice) {
  std::mt19937 draw(3);
  int compiled = 0;
  for (int round = 0; round < 150; ++round) {
    const std::string words = random_pattern(draw, static_cast<int>(draw() % 4));
    const auto pattern = parse_pattern(words);
    EXPECT_EQ(parse_pattern(pattern->text())->text(), pattern->text()) << words;
    compiled += compile(pattern).has_value();
    const int64_t n = 1 + static_cast<int64_t>(draw() % 33),
                  m = 1 + static_cast<int64_t>(draw() % static_cast<unsigned>(n));
    expect_law(pattern, n - m, m, n);
    // What may not be seen is not seen.
    const Tensor seen = draw_matrix(*pattern, n);
    for (int box = 0; box < 8; ++box) {
      const auto stretch = [&] {
        const int64_t low = static_cast<int64_t>(draw() % static_cast<unsigned>(n));
        return Stretch{low, low + static_cast<int64_t>(draw() % static_cast<unsigned>(n - low))};
      };
      const Stretch q = stretch(), k = stretch();
      if (!pattern->may_see(q, k)) {
        EXPECT_FALSE(seen.slice(0, q.low, q.high + 1).slice(1, k.low, k.high + 1).any().item<bool>()) << words;
      }
    }
  }
  EXPECT_GT(compiled, 110);
}

TEST(Views, LanesMayDiffer) {
  const auto pattern =
      fill_in(parse_pattern("(prefix(@prefix) | causal & (window(3) | stride(4))) & block_window(9, 1)"),
              {{"prefix", at::tensor({5, 0, 2}, at::kLong)}});
  expect_law(pattern, 0, 31, 31);
  expect_law(pattern, 20, 1, 21);
}

TEST(Views, AreFewAndOfTheRightKind) {
  const auto views = [](const char* words, int64_t length) {
    return compile(parse_pattern(words), {0, length - 1}, {0, length - 1}).value();
  };
  const auto strided = views("causal & (window(256) | stride(128))", 16384);
  ASSERT_EQ(strided.size(), 2u);
  EXPECT_TRUE(strided[0].band());
  EXPECT_EQ(strided[0].text(), "distance(0, 255)");
  EXPECT_EQ(strided[1].text(), "distance(256, 16383) & stride(128)");
  EXPECT_EQ(views("causal & (window(3) | causal) | window(2)", 100).size(), 1u);
  EXPECT_EQ(views("causal & (stride(3) | window(9) & stride(3))", 100).size(), 1u);  // the second adds nothing
  EXPECT_TRUE(views("causal & distance(any, -1)", 100).empty());
  EXPECT_LE(views("window(4) | global([0, 50])", 100).size(), 6u);
  // Nothing is left of what lies beyond the length.
  EXPECT_EQ(views("causal & (window(256) | stride(128))", 200).size(), 1u);
}

TEST(Views, TooManyAreRefused) {
  std::string words = "stride(2)";
  for (int l = 3; l < 40; ++l) words += text(" | stride(", l, ") & block_local(", l, ", 3)");
  EXPECT_FALSE(compile(parse_pattern(words)));
}

}  // namespace
}  // namespace kinfolk
