#include "kinfolk/pattern/draw.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

TEST(Draw, EveryPairIsOneCharacterWhereItFits) {
  EXPECT_EQ(draw_text(*parse_pattern("causal & window(2)"), 4),
            "causal & window(2): query i (down) sees key j (across)\n"
            "# seen  . not seen\n"
            "   0\n"
            "   |\n"
            "0  #...\n"
            "1  ##..\n"
            "2  .##.\n"
            "3  ..##\n");
}

TEST(Draw, LargePicturesAreReduced) {
  const std::string picture = draw_text(*parse_pattern("causal"), 20, 10);
  EXPECT_NE(picture.find("a character is 2 x 2 pairs"), std::string::npos) << picture;
  EXPECT_NE(picture.find("\n 2  #+........\n"), std::string::npos) << picture;
  EXPECT_NE(picture.find("\n    0       16\n    |       |\n"), std::string::npos) << picture;
}

TEST(Draw, MatrixIsTheMeaning) {
  const Tensor seen = draw_matrix(*parse_pattern("window(3)"), 9);
  for (int64_t i = 0; i < 9; ++i)
    for (int64_t j = 0; j < 9; ++j) EXPECT_EQ(seen[i][j].item<bool>(), std::abs(i - j) < 3);
  EXPECT_THROW(draw_matrix(*parse_pattern("full"), 1 << 20), Error);
  EXPECT_THROW(draw_matrix(*parse_pattern("full"), 0), Error);
}

}  // namespace
}  // namespace kinfolk
