#include "kinfolk/nn/input/image.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/tables.h"
#include "kinfolk/nn/testing.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

std::shared_ptr<Image> image_of(const Image::Options& options) {
  Context context;
  context.size = tiny_size();
  context.path = "input";
  context.like = at::TensorOptions().dtype(at::kDouble);
  context.generator = at::detail::createCPUGenerator(1);
  return std::make_shared<Image>(options, context);
}

TEST(Image, AddsRowAndColumnOfThePixelThatComesNext) {
  Image::Options options;
  options.rows = 3, options.columns = 4;
  const auto image = image_of(options);
  const Batch batch = random_batch(2, 20, 29);  // one image and a part of the next
  Pass pass{batch};
  pass.position = at::arange(20).expand({2, 20});
  const Tensor found = image->embed(pass);
  for (int64_t t = 0; t < 20; ++t) {
    const int64_t row = t % 12 / 4, column = t % 4;
    EXPECT_TRUE(image->place(pass.position)[1][t].equal(at::tensor({row, column}, at::kLong))) << t;
    for (int64_t i = 0; i < 32; ++i) {
      // Half of the width for each axis: 8 wavelengths of a sine and a cosine.
      const double p = static_cast<double>(i < 16 ? row : column);
      const double angle = p / std::pow(10000.0, static_cast<double>(i % 16 / 2 * 2) / 16.0);
      const double sine = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
      const double level = image->tied()[batch.tokens[0][t].item<int64_t>()][i].item<double>() * std::sqrt(32.0);
      EXPECT_NEAR(found[0][t][i].item<double>(), level + sine, 1e-12) << t << " " << i;
    }
  }
  EXPECT_FALSE(image->traits().relative);
  EXPECT_EQ(image->traits().context, 0);
}

TEST(Image, LearnedPlacesAndNone) {
  Image::Options options;
  options.rows = 3, options.columns = 4, options.position = "learned", options.scale = false;
  const auto learned = image_of(options);
  const Batch batch = random_batch(1, 12, 29);
  Pass pass{batch};
  pass.position = at::arange(12).unsqueeze(0);
  const Tensor rows = learned->named_parameters()["row"], columns = learned->named_parameters()["column"];
  const Tensor both = (rows.unsqueeze(1) + columns.unsqueeze(0)).view({1, 12, 32});
  const Tensor levels = at::embedding(learned->tied(), batch.tokens);
  EXPECT_LT(difference(learned->embed(pass), levels + both), 1e-14);
  options.position = "none";
  const auto none = image_of(options);
  EXPECT_TRUE(none->embed(pass).equal(at::embedding(none->tied(), batch.tokens)));
  EXPECT_TRUE(none->traits().relative);
}

TEST(Image, BlocksComeInTheOrderOfTheirPattern) {
  Image::Options options;
  options.rows = 5, options.columns = 7, options.order = "block", options.height = 2, options.width = 3;
  const auto image = image_of(options);
  const Tensor at = image->place(at::arange(35).unsqueeze(0))[0];  // [35, 2]
  // A pattern of blocks with nothing around them: two places see each other when their pixels share a block.
  const auto pattern = parse_pattern("local2d(5, 7, 2, 3, 0, 0, block)");
  const Tensor sees = pattern->sees(at::arange(35).view({1, 1, 35, 1}), at::arange(35).view({1, 1, 1, 35}));
  for (int64_t i = 0; i < 35; ++i) {
    for (int64_t j = 0; j < 35; ++j) {
      const auto entry = [&](int64_t t, int64_t axis) { return at[t][axis].item<int64_t>(); };
      const bool same = entry(i, 0) / 2 == entry(j, 0) / 2 && entry(i, 1) / 3 == entry(j, 1) / 3;
      EXPECT_EQ(sees[0][0][i][j].item<bool>(), same) << i << " " << j;
    }
  }
  std::vector<int64_t> order = image->grid().order();
  EXPECT_EQ((std::vector<int64_t>(order.begin(), order.begin() + 8)), (std::vector<int64_t>{0, 1, 2, 7, 8, 9, 3, 4}));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 35; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Image, RefusesWhatIsNoLevel) {
  const auto image = image_of({});
  Batch batch{at::tensor({0, 29, 2}, at::kLong).unsqueeze(0), {}};
  Pass above{batch};
  above.position = at::arange(3).unsqueeze(0);
  try {
    image->embed(above);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("from 0 to 28; found 29"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kinfolk
