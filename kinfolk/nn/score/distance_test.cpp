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

TEST(Distance, FusedIsTheDefinition) {
  const std::string options = "score = [\"distance\"]";
  const auto want = make_attention(options, 32, 2);
  const auto got = make_attention(options, 32, 2, at::TensorOptions().dtype(at::kFloat));
  EXPECT_EQ(got->explain(), "attend(causal), fused");
  const Tensor x = normal({2, 150, 32}, 5);
  const Outcome whole = run_with_gradients(*want, {x}, {150});
  const Outcome fused = run_with_gradients(*got, {x.to(at::kFloat)}, {150});
  EXPECT_LE(testing::distance(fused.out.to(at::kDouble), whole.out), 1e-5);
  for (const std::string name : {"x", "score.0.alpha", "score.0.beta", "q.weight", "k.weight"}) {
    const double size = whole.gradients.at(name).abs().max().item<double>();
    EXPECT_GT(size, 0) << name;
    EXPECT_LE(testing::distance(fused.gradients.at(name).to(at::kDouble), whole.gradients.at(name)), 1e-4 * (1 + size))
        << name;
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
