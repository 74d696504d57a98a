#include "kinfolk/nn/qk/rope.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

TEST(Rope, Golden) {
  for (const auto& one : golden::cases("attention/rope")) {
    const int64_t start = one.config.at("start");
    const std::string layout = one.config.at("layout");
    const auto branch = core_branch(
        one, text("qk = [{ kind = \"rope\", base = ", one.config.at("base").get<double>(), ".0, layout = \"", layout,
                  "\", rotary = ", one.config.at("rot_dim").get<int64_t>(), " }]"));
    const Tensor q = one.at("in.q"), k = one.at("in.k");
    const Tensor k_at = (at::arange(k.size(2), at::kLong) + start).repeat({k.size(0), 1});
    const Tensor q_at = k_at.narrow(1, k.size(2) - q.size(2), q.size(2));
    golden::expect_close(branch->qk[0]->queries({q}, q_at)[0].q, one.at("out.q"), one, "out.q");
    golden::expect_close(branch->qk[0]->keys({k}, k_at)[0].k, one.at("out.k"), one, "out.k");
    expect_core(one, *branch, start);
  }
}

TEST(Rope, PhasesOfLowPrecisionModelsTellNeighboursApart) {
  const auto branch = make_attention("qk = [\"rope\"]", 16, 1, at::TensorOptions().dtype(at::kBFloat16));
  const Tensor k = at::ones({1, 1, 2, 16}, at::TensorOptions().dtype(at::kBFloat16));
  for (const int64_t position : {257, 4095, 100000}) {
    const Tensor at = at::tensor({position, position + 1}, at::kLong).unsqueeze(0);
    const Tensor turned = branch->qk[0]->keys({k}, at)[0].k;
    EXPECT_EQ(turned.scalar_type(), at::kBFloat16);
    // The first pair turns by one radian a token: (cos p - sin p) of both neighbours, to bfloat16's three digits.
    for (int64_t n = 0; n < 2; ++n) {
      const double p = static_cast<double>(position + n);
      EXPECT_NEAR(turned[0][0][n][0].item<double>(), std::cos(p) - std::sin(p), 0.008) << position;
      EXPECT_NEAR(turned[0][0][n][8].item<double>(), std::cos(p) + std::sin(p), 0.008) << position;
    }
    EXPECT_GT(distance(turned.select(2, 0), turned.select(2, 1)), 0.3) << position;
  }
}

TEST(Rope, LanesAtDifferentPositions) {
  const auto branch = make_attention("qk = [\"rope\"]", 8, 1);
  const Tensor k = normal({2, 1, 3, 8}, 1);
  const Tensor at = at::tensor({0, 1, 2, 5, 6, 7}, at::kLong).view({2, 3});
  const Tensor together = branch->qk[0]->keys({k}, at)[0].k;
  for (int64_t lane = 0; lane < 2; ++lane) {
    const Tensor alone = branch->qk[0]->keys({k.narrow(0, lane, 1)}, at.narrow(0, lane, 1))[0].k;
    EXPECT_EQ(distance(together.narrow(0, lane, 1), alone), 0);
  }
}

TEST(Rope, RefusesAnOddNumberOfDimensions) {
  try {
    make_attention("qk = [{ kind = \"rope\", rotary = 3 }]", 8, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "[attention.qk[0].rotary] expected an even number of dimensions, at most the head width 8; found 3");
  }
  EXPECT_THROW(make_attention("qk = [\"rope\"]", 5, 1), Error);
}

}  // namespace
}  // namespace kinfolk
