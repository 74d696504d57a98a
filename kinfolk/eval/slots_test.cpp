#include "kinfolk/eval/slots.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/recipe.h"

namespace kinfolk {
namespace {

Recipe small(const std::string& compress) {
  Recipe recipe = load_recipe("compressive");
  for (const std::string set : {"let.segment=4", "let.memory=4", "let.slots=3", "let.rate=2"})
    override_recipe(recipe, set);
  override_recipe(recipe, "layers.0.branches.0.memory.compress=" + compress);
  return recipe;
}

TEST(MemoryPicture, ShowsWhichTokensEachSlotStandsFor) {
  const auto pictures = memory_pictures(small("conv"), 24, 64);
  ASSERT_EQ(pictures.size(), 1u);
  const std::string words = draw_text(pictures[0]);
  const char* lines[] = {"   0  qqqq\n",
                         "   4  mmmmqqqq\n",
                         "   8  [][]mmmmqqqq\n",
                         "  12  ..[][][]mmmmqqqq\n",
                         "  16  ......[][][]mmmmqqqq\n",
                         "  20  ..........[][][]mmmmqqqq\n"};
  for (const char* line : lines) EXPECT_NE(words.find(line), std::string::npos) << line << words;
  const std::string drawn = svg(pictures[0], "slots & tokens");
  EXPECT_NE(drawn.find("slots &amp; tokens"), std::string::npos);
  EXPECT_NE(drawn.find("slot 2: tokens 14 to 15"), std::string::npos);
}

TEST(MemoryPicture, MostUsedSlotsAreTokens) {
  for (const auto& picture : memory_pictures(small("most_used"), 0, 64))
    for (const auto& moment : picture.moments) {
      EXPECT_EQ(moment.slots.size(), std::min<size_t>(3, static_cast<size_t>(moment.fifo) / 2));
      for (const auto& slot : moment.slots) EXPECT_TRUE(slot.to == slot.from + 1 && slot.at < moment.fifo);
    }
}

TEST(MemoryPicture, SaysWhenTheFirstSlotIsThere) {
  for (const auto& [segment, memory, rate] : {std::tuple(4, 4, 2), {4, 5, 3}, {3, 1, 2}, {2, 7, 4}}) {
    Recipe recipe = small("mean_pool");
    override_recipe(recipe, text("let.segment=", segment));
    override_recipe(recipe, text("let.memory=", memory));
    override_recipe(recipe, text("let.rate=", rate));
    const auto picture = memory_pictures(recipe, 30, 64).at(0);
    for (const auto& moment : picture.moments)
      EXPECT_EQ(!moment.slots.empty(), moment.begin >= first_slot(picture)) << segment << " " << moment.begin;
  }
}

TEST(MemoryPicture, SlotsOfTwoDocumentsAreMarked) {
  const std::map<std::string, at::Tensor> facts{
      {"segment", at::arange(24, at::kLong).ge(5).to(at::kLong).unsqueeze(0)}};
  const auto words = draw_text(memory_pictures(small("mean_pool"), 24, 64, facts).at(0));
  EXPECT_NE(words.find("  12  ..[]XX[]mmmmqqqq\n"), std::string::npos) << words;
}

TEST(MemoryPicture, OthersHaveNone) {
  EXPECT_FALSE(has_slots(load_recipe("transformer_xl")));
  EXPECT_TRUE(has_slots(load_recipe("compressive")));
  EXPECT_TRUE(memory_pictures(load_recipe("window"), 8, 64).empty());
}

}  // namespace
}  // namespace kinfolk
