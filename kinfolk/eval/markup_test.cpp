#include "kinfolk/eval/markup.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kinfolk {
namespace {

TEST(Markup, InvalidUtf8IsReplaced) {
  const std::string bad = "\uFFFD";
  EXPECT_EQ(valid_utf8("caf\u00e9 \u20ac \U0001F600"), "caf\u00e9 \u20ac \U0001F600");
  EXPECT_EQ(valid_utf8("a\xff"
                       "b"),
            "a" + bad + "b");
  EXPECT_EQ(valid_utf8("\xe2\x82"), bad + bad);                      // cut short
  EXPECT_EQ(valid_utf8("\xc0\xaf"), bad + bad);                      // overlong
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), bad + bad + bad);            // surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), bad + bad + bad + bad);  // above U+10FFFF
  EXPECT_EQ(valid_utf8(std::string("\0\t\n\x1b", 4)), "\u2400\t\n\u241b");
}

TEST(Markup, EveryByteSequenceComesOutEscaped) {
  EXPECT_EQ(escape("<script>\"&'"), "&lt;script&gt;&quot;&amp;&#39;");
  for (int first = 0; first < 256; ++first)
    for (int second = 0; second < 256; ++second) {
      const auto once = valid_utf8(std::string{static_cast<char>(first), static_cast<char>(second)});
      EXPECT_EQ(valid_utf8(once), once);
    }
}

TEST(Markup, Numbers) {
  EXPECT_EQ(number_text(1.5, 3), "1.5");
  EXPECT_EQ(number_text(20, 2), "20");
  EXPECT_EQ(number_text(-0.001, 2), "0");
  EXPECT_EQ(fixed_text(2, 3), "2.000");
  EXPECT_EQ(fixed_text(std::nan(""), 3), "\u2013");
  EXPECT_EQ(fixed_text(1e300, 3).size() < 20, true);
  EXPECT_EQ(count_text(16384), "16384");
  EXPECT_EQ(count_text(131072), "131k");
  EXPECT_EQ(count_text(10.5e6), "10.5M");
  EXPECT_EQ(count_text(999.9e6), "1G");
  EXPECT_EQ(count_text(2.5e15), "2.5P");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(64 << 20), "64 MiB");
  EXPECT_EQ(duration_text(12.2), "12 s");
  EXPECT_EQ(duration_text(200), "3 min 20 s");
  EXPECT_EQ(duration_text(7500), "2 h 05 min");
}

}  // namespace
}  // namespace kinfolk
