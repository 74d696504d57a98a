#include "kinfolk/eval/images.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

constexpr int64_t kLevels = 9;

std::shared_ptr<Model> small(const std::string& name) {
  Recipe recipe = load_recipe(name);
  if (name.rfind("image", 0) == 0) {
    for (const char* set : {"let.rows=4", "let.columns=6"}) override_recipe(recipe, set);
  }
  if (name == "image_2d") override_recipe(recipe, "let.height=2"), override_recipe(recipe, "let.width=4");
  Size size = tiny_size();
  size.vocabulary = kLevels + 1, size.context = 24;
  return Model::make(recipe, size, 3);
}

Pixels some_images(int64_t count) {
  Pixels out;
  for (int64_t i = 0; i < count * 24; ++i) out.push_back(static_cast<uint8_t>(i * i % 11 % kLevels));
  return out;
}

class EvalImages : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Members, EvalImages, testing::Values("image_1d", "image_2d", "rope", "deltanet"),
                         [](const auto& info) { return info.param; });

TEST_P(EvalImages, BitsAreThoseOfEachPixelGivenTheOnesBefore) {
  const auto model = small(GetParam());
  const ImageGrid grid = grid_of(*model, 4, 6);
  const Pixels images = some_images(5);
  const ImageScores all = score_images(*model, images, grid, 1000, 2);
  EXPECT_EQ(all.images, 5);
  EXPECT_EQ(all.pixels, 120);
  // Pixel by pixel from the member's own layout, image by image.
  double sum = 0;
  std::vector<double> rows(4, 0);
  for (size_t i = 0; i < 5; ++i) {
    State state = model->start(1);
    int64_t before = kLevels;
    for (const int64_t raster : grid.order()) {
      const Tensor p = model->score({at::tensor({before}, at::kLong).view({1, 1}), {}}, &state).softmax(-1);
      before = images[i * 24 + static_cast<size_t>(raster)];
      const double bits = -std::log2(p[0][0][before].item<double>());
      sum += bits;
      rows[static_cast<size_t>(raster / 6)] += bits;
    }
  }
  EXPECT_NEAR(all.bits, sum / 120, 1e-4);
  ASSERT_EQ(all.rows.size(), 4u);
  for (size_t r = 0; r < 4; ++r) EXPECT_NEAR(all.rows[r].bits, rows[r] / 30, 1e-4) << r;
  EXPECT_GT(all.error, 0);
  EXPECT_EQ(score_images(*model, images, grid, 50, 8).images, 2);
  EXPECT_EQ(score_images(*model, images, grid, 1, 8).images, 1);
}

TEST_P(EvalImages, DrawnImagesDependOnTheirSeedAlone) {
  const auto model = small(GetParam());
  const ImageGrid grid = grid_of(*model, 4, 6);
  DrawOptions options;
  options.count = 3, options.sampler.temperature = 1, options.sampler.seed = 5;
  const Pixels three = draw_images(*model, grid, options);
  ASSERT_EQ(three.size(), 72u);
  for (const uint8_t level : three) EXPECT_LT(level, kLevels);
  EXPECT_EQ(draw_images(*model, grid, options), three);
  options.count = 1, options.sampler.seed = 6;
  EXPECT_EQ(draw_images(*model, grid, options), Pixels(three.begin() + 24, three.begin() + 48));
  options.sampler.seed = 7;
  EXPECT_NE(draw_images(*model, grid, options), Pixels(three.begin() + 24, three.begin() + 48));
  // At temperature 0 each pixel is the likeliest given those before it in the member's layout.
  options.sampler.temperature = 0;
  const Pixels best = draw_images(*model, grid, options);
  const Batch batch = image_batch(best, grid, kLevels);
  const Tensor likeliest = model->score({batch.tokens, {}}).narrow(-1, 0, kLevels).argmax(-1);
  EXPECT_TRUE(likeliest.equal(batch.fact("target")));
}

TEST_P(EvalImages, GivenRowsAreKeptAndRead) {
  const auto model = small(GetParam());
  const ImageGrid grid = grid_of(*model, 4, 6);
  DrawOptions options;
  options.count = 2, options.given = some_images(2), options.given_rows = 2;
  const Pixels completed = draw_images(*model, grid, options);
  for (size_t i = 0; i < 2; ++i)
    for (size_t pixel = 0; pixel < 12; ++pixel) EXPECT_EQ(completed[i * 24 + pixel], options.given[i * 24 + pixel]);
  options.given.clear();
  EXPECT_NE(draw_images(*model, grid, options), completed);
  options.given = some_images(1);
  EXPECT_THROW(draw_images(*model, grid, options), Error);
  options.given.clear();
  options.progress = [](double share) { return share < 0.5; };
  EXPECT_TRUE(draw_images(*model, grid, options).empty());
}

TEST(EvalOfImages, BaselinesCountWhatIsNear) {
  // Each pixel is the one above it plus one: only a context that holds it knows the next.
  Pixels train, held_out;
  uint32_t state = 7;
  for (Pixels* of : {&train, &held_out})
    for (int image = 0; image < 300; ++image) {
      std::vector<uint8_t> row;
      for (int x = 0; x < 6; ++x)
        row.push_back(static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24) % 5);
      for (uint8_t y = 0; y < 4; ++y)
        for (const uint8_t level : row) of->push_back(static_cast<uint8_t>((level + y) % 5));
    }
  const auto found = image_baselines(train, held_out, 4, 6, 5);
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found[2].name, "2 pixels before");
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i].bits, std::log2(5), 0.1) << found[i].name;
  // The first row (a quarter) stays random, and is told from the others by nothing else than zeros above.
  for (size_t i = 4; i < 6; ++i) EXPECT_LT(found[i].bits, 0.6 * std::log2(5)) << found[i].name;
}

TEST(EvalOfImages, RefusesOtherFormsAndLevels) {
  const auto model = small("image_1d");
  EXPECT_THROW(grid_of(*model, 6, 4), UsageError);
  EXPECT_THROW(image_batch(Pixels(23), {4, 6}, kLevels), Error);
  EXPECT_THROW(image_batch(Pixels(24, kLevels), {4, 6}, kLevels), Error);
  EXPECT_THROW(score_images(*model, some_images(1), {4, 6}, 0, 1), UsageError);
}

}  // namespace
}  // namespace kinfolk
