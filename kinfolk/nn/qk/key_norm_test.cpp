#include "kinfolk/nn/qk/key_norm.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

TEST(KeyNorm, Golden) {
  for (const auto& one : golden::cases("attention/key_norm")) {
    if (!one.config.at("rope").get<bool>()) {
      expect_core(one, *core_branch(one, "qk = [\"key_norm\"]"));
      continue;
    }
    expect_core(one, *core_branch(one, "qk = [\"key_norm\", \"rope\"]"));
    expect_core(one, *core_branch(one, "qk = [\"rope\", \"key_norm\"]"));
  }
}

TEST(KeyNorm, KeysOfZerosStayZero) {
  const auto branch = make_attention("qk = [\"key_norm\"]", 8, 1);
  const Tensor k = at::zeros({1, 1, 2, 8}, real()).set_requires_grad(true);
  const Tensor out = branch->prepare_keys(k, at::zeros({1, 2}, at::kLong)).at(0);
  EXPECT_EQ(out.abs().max().item<double>(), 0);
  out.sum().backward();
  EXPECT_TRUE(k.grad().isfinite().all().item<bool>());
}

TEST(KeyNorm, RefusesASecondScale) { EXPECT_THROW(make_attention("qk = [\"key_norm\"]\nscale = 0.3", 8, 1), Error); }

}  // namespace
}  // namespace kinfolk
