#include "kinfolk/nn/qk/log_n.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

/// The step's n is the number of tokens up to the query; the row's bidirectional cases count all keys, which is not
/// this step.
TEST(LogN, Golden) {
  int64_t used = 0;
  for (const auto& one : golden::cases("attention/logn_scale")) {
    if (!one.config.at("causal").get<bool>()) continue;
    expect_core(one, *core_branch(
                         one, text("qk = [{ kind = \"log_n\", trained = ", one.config.at("train_length").get<int64_t>(),
                                   ", clip = ", one.config.at("clip").get<bool>() ? "true" : "false", " }]")));
    ++used;
  }
  EXPECT_GT(used, 0);
}

TEST(LogN, InvalidQueriesGiveNoNaN) {
  const auto branch = make_attention("qk = [{ kind = \"log_n\", clip = false }]", 8, 1);
  const Tensor at = at::tensor({-1, 0, 1}, at::kLong).unsqueeze(0);
  EXPECT_TRUE(branch->qk[0]->queries({normal({1, 1, 3, 8}, 1)}, at)[0].q.isfinite().all().item<bool>());
  EXPECT_FALSE(branch->traits().relative);
}

}  // namespace
}  // namespace kinfolk
