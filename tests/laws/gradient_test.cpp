// Gradients against finite differences, and gradient checkpointing against none.
#include "tests/laws/bench.h"

namespace kinfolk::laws {
namespace {

class Gradient : public Law {};

// Five tokens: within one segment of a memory whose past is a constant in the gradient by definition.
TEST_P(Gradient, EqualsFiniteDifferences) {
  const Bench bench(GetParam().recipe, 5);
  if (bench.traits.estimates) GTEST_SKIP() << "gradients are an estimate by construction (straight-through)";
  const auto gradients = bench.gradients(bench.run(bench.tokens));
  auto generator = at::detail::createCPUGenerator(21);
  const at::NoGradGuard guard;
  for (const auto& [name, tensor] : bench.model->weights()) {
    const Tensor weight = tensor;
    // A random direction in each tensor: one number tells of all its entries.
    const Tensor direction = at::randn(weight.sizes(), generator, weight.options().requires_grad(false));
    const double want = (gradients.at(name) * direction).sum().item<double>();
    const auto value = [&](double step) {
      Tensor alias = weight;
      const Tensor before = weight.clone();
      alias.add_(direction, step);
      const double v = bench.number(bench.run(bench.tokens)).item<double>();
      alias.copy_(before);
      return v;
    };
    // Fourth order in the step, which is small beside an embedding (0.02) and the kinks of relu.
    const double h = 2e-6;
    const double got = (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h);
    EXPECT_NEAR(got, want, 1e-6 * std::max(1.0, std::abs(want))) << name;
  }
}

TEST_P(Gradient, CheckpointingChangesNothing) {
  const Bench bench(GetParam().recipe, 12, 2, at::kDouble, 0.2);
  bench.model->train();
  const Result plain = bench.run(bench.tokens);
  const auto gradients = bench.gradients(plain);
  bench.model->checkpointing = true;
  const Result again = bench.run(bench.tokens);
  expect_same(again, plain, 0, "checkpointing");
  expect_same_gradients(bench.gradients(again), gradients, 1e-12, "checkpointing");
  if (!bench.traits.streams) return;
  const Result pieces = bench.pieces({5, 12});
  bench.model->checkpointing = false;
  const Result want = bench.pieces({5, 12});
  expect_same(pieces, want, 0, "checkpointing, carried");
  expect_same_gradients(bench.gradients(pieces), bench.gradients(want), 1e-12, "checkpointing, carried");
}

// Beside what an earlier call left, cut off as between training steps, every parameter is still reached.
TEST_P(Gradient, EveryParameterLearnsBesideACarriedState) {
  const Bench bench(GetParam().recipe, 24);
  if (!bench.traits.streams) GTEST_SKIP() << bench.traits.why_not;
  bench.model->train();
  State state = bench.model->start(2);
  bench.run(bench.tokens.slice(1, 0, 12), &state);
  state.detach();
  std::string unreached;
  for (const auto& [name, gradient] : bench.gradients(bench.run(bench.tokens.slice(1, 12), &state))) {
    if (!gradient.any().item<bool>()) unreached += (unreached.empty() ? "" : ", ") + name;
  }
  EXPECT_EQ(unreached, "");
}

INSTANTIATE_TEST_SUITE_P(Recipes, Gradient, ::testing::ValuesIn(members()), name_of);

}  // namespace
}  // namespace kinfolk::laws
