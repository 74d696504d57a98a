#include "kinfolk/nn/score/kerple.h"

#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/nn/score/alibi.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

/// The row's r1 and r2 are not our parameters but functions of them: a is set so that they agree, and the gradient is
/// taken to r by the chain rule.
void expect_row(const std::string& form) {
  for (const auto& one : golden::cases("attention/kerple_" + form)) {
    const auto branch = core_branch(one, "score = [{ kind = \"kerple\", form = \"" + form + "\" }]");
    const auto step = std::dynamic_pointer_cast<Kerple>(branch->score[0]);
    {
      const at::NoGradGuard guard;
      const Tensor r1 = one.at("param.r1"), r2 = one.at("param.r2");
      step->a1.copy_(r1.expm1().log());
      step->a2.copy_(form == "power" ? (r2 / 2).logit() : r2.expm1().log());
      EXPECT_LE(distance(step->r1(), r1), 1e-12);
      EXPECT_LE(distance(step->r2(), r2), 1e-12);
    }
    expect_core(one, *branch);
    const auto slope = [](const Tensor& a, const Tensor& r) { return torch::autograd::grad({r.sum()}, {a})[0]; };
    golden::expect_gradient(step->a1.grad() / slope(step->a1, step->r1()), one.at("grad.param.r1"), one, "grad r1");
    golden::expect_gradient(step->a2.grad() / slope(step->a2, step->r2()), one.at("grad.param.r2"), one, "grad r2");
  }
}

TEST(Kerple, GoldenOfTheLogarithm) { expect_row("log"); }
TEST(Kerple, GoldenOfThePower) { expect_row("power"); }

Context heads_of(int64_t count) {
  Context context;
  context.like = real();
  context.heads.count = count;
  return context;
}

TEST(Kerple, StartsFromTheSlopesOfAlibi) {
  for (const int64_t heads : {3, 6, 12}) {
    const Tensor slopes = alibi_slopes(heads), t = at::arange(6, at::kLong);
    const Kerple power({.form = "power"}, heads_of(heads)), log({.form = "log"}, heads_of(heads));
    EXPECT_LE(distance(power.table(t), -slopes.unsqueeze(1) * t), 1e-12) << heads;
    EXPECT_LE(distance(log.table(t), -(slopes.unsqueeze(1) * t).log1p()), 1e-12) << heads;
  }
}

TEST(Kerple, NoDistanceHasNoBiasAndNoGradient) {
  for (const std::string form : {"log", "power"}) {
    const Kerple step({.form = form}, heads_of(2));
    const Tensor table = step.table(at::zeros({1}, at::kLong));
    EXPECT_EQ(table.abs().max().item<double>(), 0);
    table.sum().backward();
    EXPECT_EQ(step.a2.grad().abs().max().item<double>(), 0) << form;
  }
}

}  // namespace
}  // namespace kinfolk
