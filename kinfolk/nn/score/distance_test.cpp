#include "kinfolk/nn/score/distance.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

TEST(Distance, Golden) {
  for (const auto& one : golden::cases("attention/da_transformer")) {
    const std::string pattern = one.config.at("causal").get<bool>() ? "causal" : "full";
    const auto branch = core_branch(one, "score = [\"distance\"]\npattern = \"" + pattern + "\"");
    const auto step = std::dynamic_pointer_cast<Distance>(branch->score[0]);
    expect_core(one, *branch, 0, {{"alpha", step->alpha}, {"beta", step->beta}});
  }
}

TEST(Distance, NoOverflowHoweverFar) {
  const auto branch = make_attention("score = [\"distance\"]", 8, 2);
  const auto step = std::dynamic_pointer_cast<Distance>(branch->score[0]);
  {
    const at::NoGradGuard guard;
    step->alpha.copy_(at::tensor({50.0, -50.0}, real()));
    step->beta.copy_(at::tensor({3.0, 800.0}, real()));
  }
  const Tensor factor = step->prepare(at::zeros({1}, real()), 100000, 100003)[0];
  EXPECT_NEAR(factor[0][0].item<double>(), 1 + std::exp(3.0), 1e-9);
  EXPECT_EQ(factor[1].abs().max().item<double>(), 0);
  factor.sum().backward();
  EXPECT_TRUE(step->alpha.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(step->beta.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace kinfolk
