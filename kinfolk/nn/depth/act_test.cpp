#include "kinfolk/nn/depth/act.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/reference/act.h"
#include "kinfolk/reference/golden.h"

namespace kinfolk {
namespace {

Act weigh(const ActOptions& options, const Tensor& states, const Tensor& logits, const Tensor& initial) {
  Act act(options, initial);
  for (int64_t n = 0; n < states.size(0); ++n) {
    act.add(states[n], logits[n].sigmoid(), n + 1 == states.size(0));
  }
  return act;
}

TEST(Act, Golden) {
  for (const auto& c : golden::cases("attention/act")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const Tensor states = c.at("in.states").to(type).requires_grad_(),
                   logits = c.at("in.logits").to(type).requires_grad_();
      const bool from = c.has("in.initial");
      const Tensor initial =
          from ? c.at("in.initial").to(type).requires_grad_() : at::zeros_like(states.detach().select(0, 0));
      ActOptions options;
      options.eps = c.config.at("eps").get<double>();
      options.form = c.config.at("mode").get<std::string>();
      options.strict = c.config.at("strict").get<bool>();
      const Act act = weigh(options, states, logits, initial);
      golden::expect_close(act.mean(), c.at("out.y"), c, "y");
      golden::expect_close(at::stack(act.weights()), c.at("out.weights"), c, "weights");
      golden::expect_close(act.remainder(), c.at("out.remainder"), c, "remainder");
      golden::expect_close(act.ponder(), c.at("out.ponder"), c, "ponder");
      EXPECT_TRUE(act.updates().equal(c.at("out.updates"))) << c.name;
      ((act.mean() * c.at("cot.y")).sum() + (act.ponder() * c.at("cot.ponder")).sum()).backward();
      golden::expect_gradient(states.grad(), c.at("grad.in.states"), c, "states");
      golden::expect_gradient(logits.grad(), c.at("grad.in.logits"), c, "logits");
      if (from) golden::expect_gradient(initial.grad(), c.at("grad.in.initial"), c, "initial");
    }
  }
}

TEST(Act, EqualsTheLoops) {
  at::manual_seed(3);
  for (const bool graves : {true, false}) {
    for (const double shift : {-4.0, 0.0, 6.0}) {  // nobody halts before the limit; some do; all at the first step
      const Tensor states = at::randn({4, 30, 3}, at::kDouble), logits = at::randn({4, 30}, at::kDouble) + shift;
      const Tensor initial = at::randn({30, 3}, at::kDouble);
      const ActOptions options{0.01, graves ? "graves" : "reference", false};
      const Act act = weigh(options, states, logits, initial);
      const auto want = reference::act(states, logits, 0.01, false, graves, initial);
      EXPECT_LT((act.mean() - want.y).abs().max().item<double>(), 1e-14);
      EXPECT_LT((at::stack(act.weights()) - want.weights).abs().max().item<double>(), 1e-14);
      EXPECT_LT((act.ponder() - want.ponder).abs().max().item<double>(), 1e-14);
      EXPECT_TRUE(act.updates().equal(want.updates));
      EXPECT_FALSE(act.running().any().item<bool>());
    }
  }
}

// The fault this guards against: probabilities, remainders and counts that share one tensor, so that a second run
// starts from what the first left.
TEST(Act, SecondRunEqualsTheFirstAndInputsStayAsTheyWere) {
  at::manual_seed(4);
  const Tensor states = at::randn({5, 20, 4}, at::kDouble), logits = at::randn({5, 20}, at::kDouble) - 1;
  const Tensor initial = at::randn({20, 4}, at::kDouble);
  const Tensor copies[3] = {states.clone(), logits.clone(), initial.clone()};
  for (const char* form : {"graves", "reference"}) {
    const Act first = weigh({0.01, form, false}, states, logits, initial);
    const Act second = weigh({0.01, form, false}, states, logits, initial);
    EXPECT_TRUE(first.mean().equal(second.mean()));
    EXPECT_TRUE(first.ponder().equal(second.ponder()));
    EXPECT_TRUE(states.equal(copies[0]) && logits.equal(copies[1]) && initial.equal(copies[2]));
    if (std::string(form) == "graves") {
      EXPECT_LT((at::stack(first.weights()).sum(0) - 1).abs().max().item<double>(), 1e-14);
    }
    EXPECT_LE(first.updates().max().item<int64_t>(), 5);
    EXPECT_GE(first.updates().min().item<int64_t>(), 1);
  }
}

TEST(Act, CountHasNoGradientRemainderHas) {
  const Tensor logits = at::zeros({3, 1}, at::kDouble).requires_grad_();  // p = 0.5, 0.5: halts at the second step
  const Act act =
      weigh({0.01, "graves", false}, at::zeros({3, 1, 1}, at::kDouble), logits, at::zeros({1, 1}, at::kDouble));
  EXPECT_EQ(act.updates().item<int64_t>(), 2);
  act.ponder().sum().backward();
  // R = 1 - p_1, so dR/dlogit_1 = -p (1 - p).
  EXPECT_TRUE(logits.grad().equal(at::tensor({-0.25, 0.0, 0.0}, at::kDouble).view({3, 1})));
}

TEST(Act, HaltsAtTheBoundUnlessStrict) {
  const Tensor initial = at::zeros({1, 1}, at::kDouble), half = at::full({1}, 0.5, at::kDouble);
  for (const bool strict : {false, true}) {
    Act act({0.0, "graves", strict}, initial);
    act.add(initial, half, false);
    act.add(initial, half, false);  // the sum is exactly 1 - eps
    EXPECT_EQ(act.running().item<bool>(), strict);
  }
}

TEST(Act, RefusesWhatDoesNotFit) {
  EXPECT_THROW(Act({0.01, "mean", false}, at::zeros({2, 3})), Error);
  Act act({}, at::zeros({2, 3}));
  EXPECT_THROW(act.add(at::zeros({2, 4}), at::zeros({2}), false), Error);
}

}  // namespace
}  // namespace kinfolk
