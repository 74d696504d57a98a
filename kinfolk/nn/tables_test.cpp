#include "kinfolk/nn/tables.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/reference/golden.h"

namespace kinfolk {
namespace {

TEST(Tables, Golden) {
  for (const auto& one : golden::cases("attention/sinusoidal")) {
    const Tensor want = one.at("out.pe");
    const int64_t start = one.config.value("start", 0);
    const Tensor got = sinusoid(at::arange(want.size(0), at::kLong) + start, want.size(1), one.config.at("base"),
                                one.config.at("layout"), at::TensorOptions().dtype(at::kDouble));
    golden::expect_close(got, want, one, "pe");
  }
}

TEST(Tables, PhasesStayExactFarOutAndInLowPrecision) {
  const Tensor far = at::full({1}, 16777217, at::kLong);  // 2^24 + 1: not a float32
  const Tensor got = sinusoid(far, 2, 10000, "halves", at::TensorOptions().dtype(at::kBFloat16));
  EXPECT_NEAR(got[0][0].item<double>(), std::sin(16777217.0), 0.004);
  EXPECT_NEAR(got[0][1].item<double>(), std::cos(16777217.0), 0.004);
}

TEST(Tables, OddWidthEndsWithASine) {
  for (const std::string layout : {"interleaved", "halves"}) {
    const Tensor got = sinusoid(at::arange(4, at::kLong), 5, 100, layout, at::TensorOptions().dtype(at::kDouble));
    EXPECT_EQ(got.sizes(), (std::vector<int64_t>{4, 5}));
    const int64_t third = layout == "interleaved" ? 4 : 2;
    EXPECT_NEAR(got[3][third].item<double>(), std::sin(3 * std::pow(100.0, -0.8)), 1e-12);
  }
  EXPECT_THROW(sinusoid(at::arange(4, at::kLong), 4, 100, "spiral", at::TensorOptions()), Error);
}

}  // namespace
}  // namespace kinfolk
