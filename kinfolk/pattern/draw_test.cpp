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

TEST(Draw, FactsOfOneLane) {
  const auto prefix = parse_pattern("prefix(@prefix) | causal");
  const Tensor seen = draw_matrix(prefix, 9, drawn_facts(9));
  for (int64_t i = 0; i < 9; ++i)
    for (int64_t j = 0; j < 9; ++j) EXPECT_EQ(seen[i][j].item<bool>(), j < 3 || j <= i) << i << " " << j;
  EXPECT_TRUE(at::equal(draw_matrix(prefix, 9, {}), draw_matrix(*parse_pattern("causal"), 9))) << "no fact: no prefix";

  const auto global = parse_pattern("causal & (window(2) | global(@global))");
  const Tensor rows = draw_matrix(global, 8, {{"global", at::tensor({int64_t{3}, int64_t{-1}}).unsqueeze(0)}});
  for (int64_t i = 0; i < 8; ++i)
    for (int64_t j = 0; j < 8; ++j) {
      EXPECT_EQ(rows[i][j].item<bool>(), j <= i && (i - j < 2 || i == 3 || j == 3)) << i << " " << j;
    }

  const Tensor segment = at::tensor({int64_t{0}, int64_t{0}, int64_t{4}, int64_t{4}, int64_t{2}}).unsqueeze(0);
  const Tensor apart = draw_matrix(parse_pattern("causal"), 5, {{"segment", segment}});
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(apart[i][j].item<bool>(), j <= i && i / 2 == j / 2) << i << " " << j;
}

TEST(Draw, SideBySide) {
  const std::vector<Drawing> two{{"heads 0", draw_matrix(*parse_pattern("causal & window(1)"), 3)},
                                 {"heads 1", draw_matrix(*parse_pattern("causal"), 3)}};
  EXPECT_EQ(draw_text(two, "sees"),
            "1  heads 0\n"
            "2  heads 1\n"
            "sees\n"
            "# seen  . not seen\n"
            "\n"
            "   1        2\n"
            "   0        0\n"
            "   |        |\n"
            "0  #..   0  #..\n"
            "1  .#.   1  ##.\n"
            "2  ..#   2  ###\n");
  const std::string narrow = draw_text(two, "sees", 64, 10);  // below each other
  EXPECT_NE(narrow.find("2  ..#\n\n   2\n"), std::string::npos) << narrow;
  EXPECT_EQ(draw_text({two[1]}, "sees"), draw_text(two[1].matrix, "heads 1: sees"));
  EXPECT_THROW(draw_text(std::vector<Drawing>{}, "sees"), Error);
}

TEST(Draw, StructureIsWhatCausalAndFullDoNotHave) {
  const auto shows = [](const std::string& words, int64_t length) {
    return shows_structure(draw_matrix(*parse_pattern(words), length));
  };
  EXPECT_FALSE(shows("causal", 24));
  EXPECT_FALSE(shows("full", 24));
  EXPECT_FALSE(shows("causal & window(24)", 24));
  EXPECT_TRUE(shows("causal & window(8)", 24));
  EXPECT_TRUE(shows("window(23)", 24));
  EXPECT_TRUE(shows("prefix(3) | causal", 24));
}

}  // namespace
}  // namespace kinfolk
