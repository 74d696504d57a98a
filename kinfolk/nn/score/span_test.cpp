#include "kinfolk/nn/score/span.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

/// The row's z are tokens, our parameter is their logit. Spans that depend on the input are another step.
TEST(Span, Golden) {
  int64_t used = 0;
  for (const auto& one : golden::cases("attention/adaptive_span")) {
    const auto& c = one.config;
    if (c.at("dynamic").get<bool>()) continue;
    const int64_t longest = c.at("max_span");
    // The row sees keys with i - j <= max_span.
    const auto branch = core_branch(
        one, text("pattern = \"causal & window(", longest + 1, ")\"\nscore = [{ kind = \"span\", longest = ", longest,
                  ", ramp = ", static_cast<int64_t>(c.at("ramp").get<double>()),
                  ", own = ", c.at("include_self").get<bool>() ? "true" : "false", " }]"));
    const auto step = std::dynamic_pointer_cast<Span>(branch->score[0]);
    {
      const at::NoGradGuard guard;
      step->a.copy_((one.at("param.z") / static_cast<double>(longest)).logit());
      ASSERT_LE(distance(step->z(), one.at("param.z")), 1e-9) << one.name;
    }
    golden::expect_close(step->z().sum().view({1}), one.at("out.penalty"), one, "out.penalty");
    Tensor penalty = step->z().sum();
    if (one.has("cot.penalty")) (penalty * one.at("cot.penalty").sum()).backward();
    expect_core(one, *branch);
    const Tensor share = step->a.detach().sigmoid(), slope = static_cast<double>(longest) * share * (1 - share);
    golden::expect_gradient(step->a.grad() / slope, one.at("grad.param.z"), one, "grad z");
    ++used;
  }
  EXPECT_GT(used, 0);
}

TEST(Span, LossIsTheMeanSpanAndKeysBeyondAreNotSeen) {
  const auto branch = make_attention("score = [{ kind = \"span\", longest = 16, ramp = 2 }]", 8, 2);
  const auto step = std::dynamic_pointer_cast<Span>(branch->score[0]);
  {
    const at::NoGradGuard guard;
    step->a.copy_((at::tensor({1.0, 3.0}, real()) / 16).logit());
  }
  std::map<std::string, Tensor> losses;
  const Batch batch;
  Pass pass{.batch = batch};
  pass.losses = &losses;
  step->add_losses(pass);
  EXPECT_NEAR(losses.at("span").item<double>(), 2, 1e-12);
  // Head 0 sees distances up to 1 in full, 2 by half; head 1 up to 3, 4 by half.
  const Tensor m = step->table(at::arange(7, at::kLong)).exp();
  EXPECT_LE(
      distance(m,
               at::tensor({1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0}, real()).view({2, 7})),
      1e-12);
  EXPECT_THROW(make_attention("pattern = \"full\"\nscore = [\"span\"]", 8, 1), Error);
}

}  // namespace
}  // namespace kinfolk
