#include "kinfolk/nn/score/alibi.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

TEST(Alibi, Golden) {
  for (const auto& one : golden::cases("attention/alibi")) {
    golden::expect_close(alibi_slopes(one.at("in.q").size(1)), one.at("out.slopes"), one, "slopes");
    const std::string pattern = one.config.at("causal").get<bool>() ? "causal" : "full";
    expect_core(one, *core_branch(one, text("pattern = \"", pattern, "\"\nscore = [\"alibi\"]")));
  }
}

TEST(Alibi, SlopesForAnyNumberOfHeads) {
  const auto expect = [](int64_t heads, std::vector<double> exponents) {
    const Tensor slopes = alibi_slopes(heads);
    ASSERT_EQ(slopes.numel(), static_cast<int64_t>(exponents.size()));
    for (size_t h = 0; h < exponents.size(); ++h)
      EXPECT_DOUBLE_EQ(slopes[h].item<double>(), std::exp2(exponents[h])) << heads << " heads, head " << h;
  };
  expect(1, {-8});
  expect(3, {-4, -8, -2});
  expect(6, {-2, -4, -6, -8, -1, -3});
  expect(8, {-1, -2, -3, -4, -5, -6, -7, -8});
  expect(12, {-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5});
  EXPECT_THROW(alibi_slopes(0), Error);
}

TEST(Alibi, TableIsTheStep) {
  const auto branch = make_attention("score = [\"alibi\"]", 12, 6);
  auto& step = *branch->score[0];
  const Tensor distance = at::arange(-3, 5, at::kLong).view({1, 1, 2, 4});
  const Tile tile{at::zeros({1, 6, 2, 4}, real()), {}, distance, -3, 4};
  const auto table = step.by_distance(tile.scores, -3, 4);
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->lowest, -3);
  const Tensor read = table->table.index_select(1, (distance - table->lowest).flatten()).view({1, 6, 2, 4});
  EXPECT_LE(testing::distance(read, step.apply(tile, step.prepare(tile.scores, -3, 4))), 1e-15);
}

}  // namespace
}  // namespace kinfolk
