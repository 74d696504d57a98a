#include "kinfolk/eval/picture.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Two images of 2 x 3 pixels of 5 levels.
Picture two() { return {2, 3, 5, {0, 4, 4, 1, 2, 3, 4, 0, 0, 0, 0, 4}, 2, 1, "two <images>"}; }

TEST(Picture, SvgHasOnePathALevel) {
  const std::string page = svg(two(), 10);
  EXPECT_TRUE(has(page, "width=\"90\" height=\"40\" viewBox=\"-1 -1 9 4\"")) << page;
  EXPECT_TRUE(has(page, "two &lt;images&gt;")) << page;
  // White, level 4: two pixels of the first image, then the first pixel and the last of the second.
  EXPECT_TRUE(has(page, "<path fill=\"rgb(255,255,255)\" d=\"M1 0h2v1h-2zM4 0h1v1h-1zM6 1h1v1h-1z\"/>")) << page;
  EXPECT_TRUE(has(page, "<path fill=\"rgb(0,0,0)\" d=\"M0 0h1v1h-1zM5 0h2v1h-2zM4 1h2v1h-2z\"/>")) << page;
  EXPECT_TRUE(has(page, "rgb(64,64,64)")) << page;
  EXPECT_EQ(svg(two()), svg(two()));
}

TEST(Picture, PgmHoldsEveryPixel) {
  const std::string map = pgm(two(), 2);
  const std::string head = "P5\n14 4\n255\n";
  ASSERT_EQ(map.size(), head.size() + 14 * 4);
  EXPECT_EQ(map.substr(0, head.size()), head);
  const auto at = [&](size_t row, size_t column) {
    return static_cast<int>(static_cast<unsigned char>(map[head.size() + row * 14 + column]));
  };
  EXPECT_EQ(at(0, 0), 0);
  EXPECT_EQ(at(0, 2), 255);
  EXPECT_EQ(at(2, 0), 64);
  EXPECT_EQ(at(3, 1), 64);
  EXPECT_EQ(at(0, 8), 255);
}

TEST(Picture, BlocksOnATerminal) {
  EXPECT_EQ(blocks(two()), "  ████ ██\n░░▒▒▓▓     ██\n");
  Picture pairs = two();
  pairs.group = 2, pairs.across = 1;
  EXPECT_EQ(blocks(pairs), "  ████\n░░▒▒▓▓\n\n██\n    ██\n");
}

TEST(Picture, RefusesPartsOfImages) {
  Picture cut = two();
  cut.pixels.pop_back();
  EXPECT_THROW(svg(cut), Error);
  Picture bright = two();
  bright.pixels[3] = 5;
  EXPECT_THROW(pgm(bright), Error);
  EXPECT_THROW(pgm(two(), 0), Error);
}

}  // namespace
}  // namespace kinfolk
