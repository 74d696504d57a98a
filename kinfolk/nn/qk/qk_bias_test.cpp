#include "kinfolk/nn/qk/qk_bias.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

TEST(QkBias, Golden) {
  for (const auto& one : golden::cases("attention/qk_bias")) {
    const auto branch = core_branch(one, "qk = [\"qk_bias\", \"rope\"]");
    const auto bias = std::dynamic_pointer_cast<QkBias>(branch->qk[0]);
    expect_core(one, *branch, 0, {{"a", bias->a}, {"b", bias->b}});
  }
}

}  // namespace
}  // namespace kinfolk
