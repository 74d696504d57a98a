// Every term against its formula, and its two faces (sees; groups and keys) against each other.
#include "kinfolk/pattern/term.h"

#include <gtest/gtest.h>

#include <functional>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/draw.h"
#include "kinfolk/pattern/views.h"

namespace kinfolk {
namespace {

using Meaning = std::function<bool(int64_t, int64_t)>;

void expect_term(const std::string& text, int64_t length, const Meaning& meaning) {
  const auto pattern = parse_pattern(text);
  EXPECT_EQ(pattern->text(), text);
  const Tensor seen = draw_matrix(*pattern, length);
  bool shifted_alike = true;
  for (int64_t i = 0; i < length; ++i)
    for (int64_t j = 0; j < length; ++j) {
      const bool got = seen[i][j].item<bool>();
      ASSERT_EQ(got, meaning(i, j)) << text << " at " << i << ", " << j;
      if (got) {
        EXPECT_LE(pattern->nearest(), i - j) << text;
        EXPECT_GE(pattern->farthest(), i - j) << text;
        EXPECT_TRUE(pattern->may_see({i, i}, {j, j})) << text << " at " << i << ", " << j;
      }
      if (i > 0 && j > 0 && got != seen[i - 1][j - 1].item<bool>()) shifted_alike = false;
    }
  if (pattern->relative()) EXPECT_TRUE(shifted_alike) << text << " says it is relative";
}

TEST(Terms, MeanWhatTheirFormulasSay) {
  expect_term("distance(2, 5)", 12, [](int64_t i, int64_t j) { return i - j >= 2 && i - j <= 5; });
  expect_term("distance(any, 1)", 12, [](int64_t i, int64_t j) { return i - j <= 1; });
  expect_term("distance(-3, any)", 12, [](int64_t i, int64_t j) { return i - j >= -3; });
  expect_term("dilated(3, 2)", 15, [](int64_t i, int64_t j) { return std::abs(i - j) < 6 && (i - j) % 2 == 0; });
  expect_term("stride(4)", 15, [](int64_t i, int64_t j) { return (i - j) % 4 == 0; });
  expect_term("fixed(5, 2)", 17, [](int64_t, int64_t j) { return j % 5 >= 3; });
  expect_term("fixed(7, 2, 1)", 17, [](int64_t, int64_t j) { return j % 7 >= 3 && j % 7 < 5; });
  expect_term("block_local(4, 3)", 15, [](int64_t i, int64_t j) { return j >= i / 4 * 4 - 3 && j < i / 4 * 4 + 4; });
  expect_term("block_local(1, 0)", 9, [](int64_t i, int64_t j) { return i == j; });
  expect_term("block_window(3, 1)", 16, [](int64_t i, int64_t j) { return std::abs(i / 3 - j / 3) <= 1; });
  expect_term("blocks(3, 10, 1)", 23,
              [](int64_t i, int64_t j) { return i / 10 == j / 10 && (i % 10 * 3 / 10 + 1) % 3 == j % 10 * 3 / 10; });
  expect_term("blocks(3, 9, [0, 2, 1])", 9, [](int64_t i, int64_t j) {
    const int64_t other[] = {0, 2, 1};
    return other[i / 3] == j / 3;
  });
  expect_term("blocks(4, 2, 1)", 6, [](int64_t i, int64_t j) {  // more blocks than positions: some are empty
    return i / 2 == j / 2 && (i % 2 * 2 + 1) % 4 == j % 2 * 2;
  });
  expect_term("columns([1, 4:6])", 9, [](int64_t, int64_t j) { return j == 1 || j == 4 || j == 5; });
  expect_term("rows(2)", 9, [](int64_t i, int64_t) { return i < 2; });
  expect_term("global([0, 7])", 10, [](int64_t i, int64_t j) { return i == 0 || j == 0 || i == 7 || j == 7; });
  expect_term("prefix(4)", 9, [](int64_t, int64_t j) { return j < 4; });
  expect_term("block_table(3, [[1], [], [0, 2]])", 12, [](int64_t i, int64_t j) {
    return (i / 3 == 0 && j / 3 == 1) || (i / 3 == 2 && (j / 3 == 0 || j / 3 == 2));
  });
}

TEST(Terms, PixelsOfImages) {
  // 3 x 5 pixels in blocks of 2 x 3: by hand, in raster order.
  const auto y = [](int64_t p) { return p % 15 / 5; };
  const auto x = [](int64_t p) { return p % 15 % 5; };
  const auto seen = [](int64_t qy, int64_t qx, int64_t ky, int64_t kx) {
    const int64_t y0 = qy / 2 * 2, x0 = qx / 3 * 3;
    return ky >= y0 - 1 && ky < y0 + 2 && kx >= x0 - 1 && kx < x0 + 3 + 1;
  };
  expect_term("local2d(3, 5, 2, 3, 1, 1, raster)", 33,
              [&](int64_t i, int64_t j) { return i / 15 == j / 15 && seen(y(i), x(i), y(j), x(j)); });
  // The same pixels with blocks one after the other.
  const int64_t order[] = {0, 1, 2, 5, 6, 7, 3, 4, 8, 9, 10, 11, 12, 13, 14};
  expect_term("local2d(3, 5, 2, 3, 1, 1, block)", 33, [&](int64_t i, int64_t j) {
    const int64_t a = order[i % 15], b = order[j % 15];
    return i / 15 == j / 15 && seen(a / 5, a % 5, b / 5, b % 5);
  });
}

TEST(Terms, RandomBlocksDependOnSeedAndRowAlone) {
  const auto one = parse_pattern("random(4, 3, 7)");
  const Tensor seen = draw_matrix(*one, 101), shorter = draw_matrix(*parse_pattern("random(4, 3, 7)"), 57);
  EXPECT_TRUE(seen.slice(0, 0, 57).slice(1, 0, 57).equal(shorter));
  EXPECT_FALSE(seen.equal(draw_matrix(*parse_pattern("random(4, 3, 8)"), 101)));
  EXPECT_TRUE(one->causal());
  for (int64_t row = 0; row < 25; ++row) {  // whole blocks before the own one, min(3, row) of them
    const Tensor mine = seen[row * 4].slice(0, 0, 100).view({25, 4});
    EXPECT_TRUE(seen.slice(0, row * 4, row * 4 + 4).eq(seen[row * 4]).all().item<bool>());
    EXPECT_TRUE(mine.all(1).equal(mine.any(1)));
    EXPECT_EQ(mine.all(1).sum().item<int64_t>(), std::min<int64_t>(3, row));
    EXPECT_FALSE(mine.slice(0, row).any().item<bool>());
  }
  // With a length, of all blocks.
  const Tensor both_ways = draw_matrix(*parse_pattern("random(4, 3, 7, 50)"), 50);
  for (int64_t i = 0; i < 50; ++i) {
    const int64_t keys = both_ways[i].sum().item<int64_t>();
    EXPECT_TRUE(keys == 12 || keys == 10) << keys;  // the last block has two positions
  }
  EXPECT_TRUE(both_ways.triu(1).any().item<bool>());
  // Every block is drawn about as often as every other: 400 rows of 2 of the 8.
  std::vector<int64_t> count(8);
  for (int64_t seed = 0; seed < 400; ++seed)
    for (int64_t b = 0; b < 8; ++b) count[static_cast<size_t>(b)] += random_term(1, 2, seed, 8)->has(0, 3, b);
  for (const int64_t n : count) EXPECT_NEAR(static_cast<double>(n), 100, 40);
}

TEST(Terms, FactsAreFilledInLaneByLane) {
  const auto pattern = parse_pattern("prefix(@prefix) | causal");
  EXPECT_FALSE(pattern->causal());
  const auto without = fill_in(pattern, {});
  EXPECT_TRUE(draw_matrix(*without, 9).equal(draw_matrix(*parse_pattern("causal"), 9)));
  const auto with = fill_in(pattern, {{"prefix", at::tensor({3, 0}, at::kLong)}});
  const Tensor at = at::arange(9, at::kLong);
  const Tensor seen = with->sees(at.view({1, 1, 9, 1}), at.view({1, 1, 1, 9}));  // [2, 1, 9, 9]
  ASSERT_EQ(seen.size(0), 2);
  EXPECT_TRUE(seen[0][0].equal(draw_matrix(*parse_pattern("prefix(3) | causal"), 9)));
  EXPECT_TRUE(seen[1][0].equal(draw_matrix(*parse_pattern("causal"), 9)));
  const auto global = fill_in(parse_pattern("window(2) | global(@global)"),
                              {{"global", at::tensor({5, -1, 0, 1}, at::kLong).view({2, 2})}});
  const Tensor each = global->sees(at.view({1, 1, 9, 1}), at.view({1, 1, 1, 9}));
  EXPECT_TRUE(each[0][0].equal(draw_matrix(*parse_pattern("window(2) | global([5])"), 9)));
  EXPECT_TRUE(each[1][0].equal(draw_matrix(*parse_pattern("window(2) | global(2)"), 9)));
  EXPECT_THROW(fill_in(pattern, {{"prefix", at::ones({2})}}), Error);
}

TEST(Terms, ArgumentsAreChecked) {
  for (const char* text : {"stride(0)",
                           "stride()",
                           "stride(3, 4)",
                           "fixed(4, 5)",
                           "fixed(4, 2, 2)",
                           "block_local(0, 1)",
                           "blocks(3, 9)",
                           "blocks(3, 9, [0, 1])",
                           "blocks(3, 9, [0, 1, 1])",
                           "blocks(3, 9, [0, 1, 3])",
                           "columns([1, 4:4])",
                           "columns([1",
                           "columns(-1)",
                           "prefix(@global)",
                           "prefix([1])",
                           "global(@nobody)",
                           "random(4, 3)",
                           "random(4, 99999, 1)",
                           "local2d(3, 5, 2, 3, 1, 1, spiral)",
                           "block_table(3, [1])",
                           "block_table(3, [[1])",
                           "dilated(3)",
                           "stride(99999999999)",
                           "distance(1)",
                           "distance(any)",
                           "window(-4)"}) {
    try {
      parse_pattern(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("^"), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace kinfolk
