#include "kinfolk/pattern/pattern.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

using Meaning = std::function<bool(int64_t, int64_t)>;

std::string complaint(const std::string& text, const Value* let = nullptr, const Place& place = {}) {
  try {
    parse_pattern(text, let, place);
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

void expect_meaning(const std::string& text, const Meaning& meaning) {
  const auto pattern = parse_pattern(text);
  const int64_t length = 13;
  const Tensor at = at::arange(length, at::kLong);
  const Tensor seen = pattern->sees(at.view({1, 1, length, 1}), at.view({1, 1, 1, length}));
  ASSERT_EQ(seen.scalar_type(), at::kBool);
  ASSERT_EQ(seen.sizes(), (at::IntArrayRef{1, 1, length, length}));
  for (int64_t i = 0; i < length; ++i)
    for (int64_t j = 0; j < length; ++j) {
      const bool got = seen[0][0][i][j].item<bool>();
      EXPECT_EQ(got, meaning(i, j)) << text << " at " << i << ", " << j;
      const bool inside = pattern->nearest() <= i - j && i - j <= pattern->farthest();
      if (got) EXPECT_TRUE(inside) << text << " sees beyond its bounds at " << i << ", " << j;
      if (pattern->interval()) EXPECT_EQ(got, inside) << text << " is no interval at " << i << ", " << j;
    }
  EXPECT_EQ(parse_pattern(pattern->text())->text(), pattern->text());
}

TEST(Pattern, MeansWhatItSays) {
  expect_meaning("causal", [](int64_t i, int64_t j) { return j <= i; });
  expect_meaning("full", [](int64_t, int64_t) { return true; });
  expect_meaning("window(1)", [](int64_t i, int64_t j) { return i == j; });
  expect_meaning("window(4)", [](int64_t i, int64_t j) { return std::abs(i - j) < 4; });
  expect_meaning("causal & window(4)", [](int64_t i, int64_t j) { return j <= i && i - j < 4; });
  expect_meaning("causal | window(3)", [](int64_t i, int64_t j) { return j <= i || j - i < 3; });
  expect_meaning(" ( causal|window(3) )&window( 5 ) ",
                 [](int64_t i, int64_t j) { return (j <= i || j - i < 3) && std::abs(i - j) < 5; });
  expect_meaning("causal & window(2) | window(1)", [](int64_t i, int64_t j) { return i == j || i - j == 1; });
  expect_meaning("window(2) | causal & full", [](int64_t i, int64_t j) { return j <= i || j - i < 2; });
}

TEST(Pattern, WindowShowsTheOwnKeyAndCountsIt) {
  const auto pattern = parse_pattern("causal & window(4)");
  const Tensor at = at::arange(12, at::kLong);
  const Tensor count = pattern->sees(at.unsqueeze(1), at.unsqueeze(0)).sum(1);
  for (int64_t t = 0; t < 12; ++t) EXPECT_EQ(count[t].item<int64_t>(), std::min<int64_t>(t + 1, 4));
}

TEST(Pattern, BoundsAreIntervals) {
  const auto bounds = [](const std::string& text) {
    const auto pattern = parse_pattern(text);
    return std::pair(pattern->nearest(), pattern->farthest());
  };
  EXPECT_EQ(bounds("causal"), (std::pair<int64_t, int64_t>(0, INT64_MAX)));
  EXPECT_EQ(bounds("full"), (std::pair<int64_t, int64_t>(INT64_MIN, INT64_MAX)));
  EXPECT_EQ(bounds("causal & window(256)"), (std::pair<int64_t, int64_t>(0, 255)));
  EXPECT_EQ(bounds("causal | window(256)"), (std::pair<int64_t, int64_t>(-255, INT64_MAX)));
  EXPECT_EQ(bounds("window(9223372036854775807)"), (std::pair<int64_t, int64_t>(-INT64_MAX + 1, INT64_MAX - 1)));
  EXPECT_TRUE(parse_pattern("causal & window(2)")->causal());
  EXPECT_FALSE(parse_pattern("window(2)")->causal());
  EXPECT_EQ(parse_pattern("causal & window(256)")->horizon(), 256);
  EXPECT_EQ(parse_pattern("causal")->horizon(), std::nullopt);
}

TEST(Pattern, NamesComeFromLet) {
  Value let;
  let.set("window", 32);
  let.set("half", 1.5);
  let.set("none", 0);
  EXPECT_EQ(parse_pattern("causal & window(window)", &let)->text(), "causal & window(32)");
  EXPECT_NE(complaint("window(windwo)", &let).find("window"), std::string::npos);
  EXPECT_NE(complaint("window(half)", &let).find("floating-point"), std::string::npos);
  EXPECT_NE(complaint("window(none)", &let).find("at least 1"), std::string::npos);
}

TEST(Pattern, FaultsHaveACaretAndTheNearestTerm) {
  const std::string message = complaint("causal & widnow(4)", nullptr, {"r.toml", 3, 7});
  EXPECT_NE(message.find("r.toml:3:7: "), std::string::npos) << message;
  EXPECT_NE(message.find("did you mean window?"), std::string::npos) << message;
  EXPECT_NE(message.find("\n  causal & widnow(4)\n           ^"), std::string::npos) << message;
  for (const char* text : {"", " ", "causal &", "causal causal", "(causal", "causal)", "window", "window()",
                           "window(0)", "window(-1)", "window(4", "window(99999999999999999999)", "window(w)",
                           "& causal", "causal || full", "window(1.5)", "Causal", "causal\n&\x01"}) {
    EXPECT_NE(complaint(text).find("^"), std::string::npos) << text;
  }
  EXPECT_NE(complaint(std::string(5000, '(')).find("parentheses"), std::string::npos);
  std::string many = "full";
  for (int i = 0; i < 100000; ++i) many += "|full";
  EXPECT_NE(complaint(many).find("terms"), std::string::npos);
}

TEST(Pattern, AnyTextParsesOrIsRefused) {
  const std::vector<std::string> pieces = {"causal",
                                           "full",
                                           "window",
                                           "(",
                                           ")",
                                           "&",
                                           "|",
                                           " ",
                                           "4",
                                           "window(3)",
                                           "w",
                                           "\n",
                                           "\xff",
                                           "0",
                                           "-",
                                           "causal & ",
                                           "_",
                                           ",",
                                           "[",
                                           "]",
                                           ":",
                                           "@",
                                           "@prefix",
                                           "global(",
                                           "columns([",
                                           "1, 2]",
                                           "stride(2)",
                                           "random(2, 1, ",
                                           "blocks(3, 9, ",
                                           "block_table(2, [",
                                           "[1]",
                                           "local2d(3, 5, 2, 2, 1, 1, ",
                                           "raster)",
                                           "prefix(",
                                           "any"};
  std::mt19937 draw(7);
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (unsigned n = draw() % 8; n > 0; --n)
      text += draw() % 5 ? pieces[draw() % pieces.size()] : std::string(1, static_cast<char>(draw()));
    try {
      const auto pattern = parse_pattern(text);
      EXPECT_EQ(parse_pattern(pattern->text())->text(), pattern->text()) << text;
      ++accepted;
    } catch (const UsageError&) {
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_LT(accepted, 1500);
}

}  // namespace
}  // namespace kinfolk
