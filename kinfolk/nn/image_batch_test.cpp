#include "kinfolk/nn/image_batch.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

TEST(ImageBatch, StartsWithTheStartTokenAndEndsWithTheImage) {
  const std::vector<uint8_t> two = {0, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1};  // 2 x 3 pixels each
  const Batch raster = image_batch(two, {2, 3}, 7);
  EXPECT_TRUE(raster.tokens.equal(at::tensor({7, 0, 1, 2, 3, 4, 7, 6, 5, 4, 3, 2}, at::kLong).view({2, 6})));
  EXPECT_TRUE(raster.fact("target").equal(at::tensor({0, 1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1}, at::kLong).view({2, 6})));
  const Batch blocks = image_batch(two, {2, 3, 2, 2}, 7);  // two columns, then the third
  EXPECT_TRUE(blocks.fact("target")[0].equal(at::tensor({0, 1, 3, 4, 2, 5}, at::kLong)));
  EXPECT_EQ(image_batch({}, {2, 3}, 7).tokens.sizes(), (std::vector<int64_t>{0, 6}));
}

TEST(ImageBatch, RefusesPartsAndHighLevels) {
  EXPECT_THROW(image_batch(std::vector<uint8_t>(5), {2, 3}, 7), Error);
  EXPECT_THROW(image_batch(std::vector<uint8_t>(6, 7), {2, 3}, 7), Error);
  EXPECT_THROW(image_batch(std::vector<uint8_t>(6), {}, 7), Error);
}

}  // namespace
}  // namespace kinfolk
