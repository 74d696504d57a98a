// The bits of a pattern that the kernel reads are what the pattern means.
#include "kinfolk/ops/attend_pairs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kinfolk/kernels/attend_sight.h"

namespace kinfolk {
namespace {

using kernels::PairBits;

const std::vector<std::string> kPatterns = {"causal",
                                            "full",
                                            "distance(-3, 7)",
                                            "causal & (window(20) | stride(16))",
                                            "causal & (block_local(32, 5) | fixed(32, 3, 1))",
                                            "causal & (block_window(16, 1) | columns(16) | random(16, 2, 1))",
                                            "random(16, 2, 1, 256) | window(3)",
                                            "prefix(40) | causal & window(9)",
                                            "global([0, 50, 100:104]) | rows([7]) & dilated(30, 4)",
                                            "local2d(8, 16, 4, 4, 2, 3, raster) | local2d(8, 16, 4, 4, 2, 3, block)",
                                            "blocks(4, 64, 1) & causal",
                                            "block_table(32, [[0], [1, 0], [2]])"};

TEST(AttendPairs, BitsAreTheMeaning) {
  at::manual_seed(1);
  for (const auto& words : kPatterns)
    for (const int64_t rows : {1, 24, 96})
      for (const int64_t columns : {1, 63, 64, 65, 128})
        for (const bool in_order : {true, false}) {
          const auto pattern = parse_pattern(words);
          const PatternPairs pairs(pattern);
          Tensor q_at = at::arange(rows, at::kLong) + at::randint(0, 150, {1}, at::kLong);
          if (rows > 2) q_at[1] = -1;
          Tensor k_at = at::arange(columns, at::kLong) + at::randint(0, 150, {1}, at::kLong);
          if (!in_order) k_at = k_at.index_select(0, at::randperm(columns, at::kLong));
          const Tensor want = pattern->sees(q_at.unsqueeze(1), k_at).expand({rows, columns}).contiguous();
          std::vector<PairBits> bits(static_cast<size_t>(rows));
          pairs.see(0, q_at.const_data_ptr<int64_t>(), rows, k_at.const_data_ptr<int64_t>(), columns, in_order,
                    bits.data());
          for (int64_t r = 0; r < rows; ++r) {
            if (q_at[r].item<int64_t>() < 0) continue;
            for (int64_t c = 0; c < 128; ++c) {
              const bool got = bits[static_cast<size_t>(r)][static_cast<size_t>(c / 64)] >> (c % 64) & 1;
              ASSERT_EQ(got, c < columns && want[r][c].item<bool>()) << words << " " << rows << " " << columns;
            }
          }
        }
}

/// Every tile of a call, against the meaning.
TEST(AttendPairs, TilesOfACall) {
  const int64_t length = 300;
  const Tensor at = at::arange(length, at::kLong);
  for (const auto& words : kPatterns) {
    const auto pattern = parse_pattern(words);
    const PatternPairs pairs(pattern);
    kernels::Attend a;
    a.batch = 2, a.length = length, a.pattern = &pairs;
    a.q_at = {at.const_data_ptr<int64_t>(), 0};
    a.bands.resize(1), a.sets.resize(1);
    a.sets[0].length = length, a.sets[0].at = a.q_at;
    const kernels::PairTiles tiles(a);
    for (int64_t t = 0; t * kernels::kAttendRows < length; ++t)
      for (int64_t k = 0; k * kernels::kAttendColumns < length; ++k) {
        const int64_t i = t * kernels::kAttendRows, j = k * kernels::kAttendColumns;
        const Tensor seen = pattern->sees(at.slice(0, i, i + kernels::kAttendRows).unsqueeze(1),
                                          at.slice(0, j, j + kernels::kAttendColumns));
        const int32_t found = tiles.find(1, t, 0, k);
        EXPECT_EQ(found == kernels::PairTiles::none, !seen.any().item<bool>()) << words;
        EXPECT_EQ(found == kernels::PairTiles::all, seen.all().item<bool>()) << words;
      }
    EXPECT_LT(tiles.bytes(), 3 * length * length / 8 + 4096) << words;
  }
}

TEST(AttendPairs, MemoryHasALimit) {  // tiles at 509 places of the stride
  const int64_t length = 1 << 16;
  const Tensor at = at::arange(length, at::kLong);
  const auto pattern = parse_pattern("stride(509)");
  const PatternPairs pairs(pattern);
  kernels::Attend a;
  a.batch = 1, a.length = length, a.pattern = &pairs;
  a.q_at = {at.const_data_ptr<int64_t>(), 0};
  a.bands.resize(1), a.sets.resize(1);
  a.sets[0].length = length, a.sets[0].at = a.q_at;
  const kernels::PairTiles tiles(a);
  EXPECT_LT(tiles.bytes(), int64_t{8} << 20);
}

}  // namespace
}  // namespace kinfolk
