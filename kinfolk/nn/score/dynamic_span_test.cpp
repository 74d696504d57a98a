#include "kinfolk/nn/score/dynamic_span.h"

#include "kinfolk/nn/testing.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

std::shared_ptr<DynamicSpan> step_of(const Attention& branch) {
  return std::dynamic_pointer_cast<DynamicSpan>(branch.score.at(0));
}

/// The row's x is narrower than the heads together, and its penalty a sum over heads where ours is a mean.
TEST(DynamicSpan, Golden) {
  int64_t used = 0;
  for (const auto& one : golden::cases("attention/adaptive_span")) {
    const auto& c = one.config;
    if (!c.at("dynamic").get<bool>()) continue;
    const int64_t longest = c.at("max_span");
    const auto branch = core_branch(one, text("pattern = \"causal & window(", longest + 1,
                                              ")\"\nscore = [{ kind = \"dynamic_span\", longest = ", longest,
                                              ", ramp = ", static_cast<int64_t>(c.at("ramp").get<double>()),
                                              ", own = ", c.at("include_self").get<bool>() ? "true" : "false", " }]"));
    const auto step = step_of(*branch);
    step->v = one.at("param.w").set_requires_grad(true), step->b = one.at("param.b").set_requires_grad(true);
    const Tensor x = one.at("in.x").set_requires_grad(true);
    const Tensor q = one.at("in.q").set_requires_grad(true), k = one.at("in.k").set_requires_grad(true),
                 v = one.at("in.v").set_requires_grad(true);
    std::map<std::string, Tensor> losses;
    const Batch batch;
    Pass pass{.batch = batch};
    pass.losses = &losses;
    const Tensor spans = step->of_queries(x, pass);
    const Tensor k_at = at::arange(k.size(2), at::kLong).repeat({k.size(0), 1});
    const Read read =
        branch->look(q, k_at.slice(1, k.size(2) - q.size(2)), {}, {Keys{k, v, k_at, {}, {}, {}}}, {}, 0, 0, {}, spans);
    golden::expect_close(read.out, one.at("out.o"), one, "out.o");
    const Tensor penalty = losses.at("span") * q.size(1);
    golden::expect_close(penalty.view({1}), one.at("out.penalty"), one, "out.penalty");
    ((read.out * one.at("cot.o")).sum() + (penalty * one.at("cot.penalty")).sum()).backward();
    golden::expect_gradient(q.grad(), one.at("grad.in.q"), one, "grad.in.q");
    golden::expect_gradient(k.grad(), one.at("grad.in.k"), one, "grad.in.k");
    golden::expect_gradient(v.grad(), one.at("grad.in.v"), one, "grad.in.v");
    golden::expect_gradient(x.grad(), one.at("grad.in.x"), one, "grad.in.x");
    golden::expect_gradient(step->v.grad(), one.at("grad.param.w"), one, "grad.param.w");
    golden::expect_gradient(step->b.grad(), one.at("grad.param.b"), one, "grad.param.b");
    ++used;
  }
  EXPECT_GT(used, 0);
}

/// With v = 0 every token has the span of the head: the static step with the same logit.
TEST(DynamicSpan, WithoutTheInputItIsTheStaticSpan) {
  const std::string rest = ", longest = 12, ramp = 3, own = ";
  for (const std::string own : {"true", "false"}) {
    const auto dynamic = make_attention("score = [{ kind = \"dynamic_span\"" + rest + own + " }]", 8, 2);
    const auto fixed = make_attention("score = [{ kind = \"span\"" + rest + own + " }]", 8, 2);
    {
      const at::NoGradGuard guard;
      const auto from = fixed->named_parameters();
      for (const auto& p : dynamic->named_parameters())
        if (from.contains(p.key())) p.value().copy_(from[p.key()]);
      step_of(*dynamic)->v.zero_();
      step_of(*dynamic)->b.copy_(from["score.0.a"]);
    }
    const Sequence sequence{normal({2, 20, 8}, 3)};
    const Outcome want = run_with_gradients(*fixed, sequence, {20}), got = run_with_gradients(*dynamic, sequence, {20});
    EXPECT_LE(distance(got.out, want.out), 1e-12);
    EXPECT_LE(distance(got.gradients.at("score.0.b"), want.gradients.at("score.0.a")), 1e-11);
    EXPECT_LE(distance(got.gradients.at("q.weight"), want.gradients.at("q.weight")), 1e-11);
  }
}

TEST(DynamicSpan, StreamsBesideOtherStepsAndByHead) {
  for (const std::string options :
       {"score = [{ kind = \"dynamic_span\", longest = 5, ramp = 2 }]",
        "pattern = \"causal & window(7)\"\nscore = [{ kind = \"dynamic_span\", longest = 5, ramp = 2 }, "
        "{ kind = \"shaw\", clip = 3 }]",
        "score = [\"xl\", { kind = \"dynamic_span\", longest = 5, ramp = 2, own = false }]\nqk = [\"xl_bias\"]",
        "per_head = [\"causal\", \"causal & window(4)\"]\nscore = [{ kind = \"dynamic_span\", longest = 5, ramp = 2 }]",
        "memory = { kind = \"segment\", segment = 4, memory = 3 }\nscore = [{ kind = \"dynamic_span\", longest = 5, "
        "ramp = 2 }]"}) {
    const auto branch = make_attention(options, 8, 2);
    Sequence sequence{normal({2, 9, 8}, 3)};
    sequence.valid = at::ones({2, 9}, at::kBool);
    sequence.valid[0].slice(0, 2, 4).fill_(false);
    const Outcome whole = run_with_gradients(*branch, sequence, {9});
    for (const auto& split : splits(9)) expect_same(run_with_gradients(*branch, sequence, split), whole, options, 1e-9);
  }
}

TEST(DynamicSpan, FiniteInFloat32WhereNothingIsSeen) {
  const auto branch =
      make_attention("score = [{ kind = \"dynamic_span\", longest = 4, ramp = 2, own = false }]", 8, 2, at::kFloat);
  const Tensor x = normal({1, 9, 8}, 5).to(at::kFloat).set_requires_grad(true);
  const Tensor out = run(*branch, {x}, {9});
  EXPECT_EQ(out.select(1, 0).abs().max().item<double>(), 0);  // the first token has no key before it
  out.square().sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  for (const auto& p : branch->named_parameters()) {
    ASSERT_TRUE(p.value().grad().defined()) << p.key();
    EXPECT_TRUE(p.value().grad().isfinite().all().item<bool>()) << p.key();
  }
}

TEST(DynamicSpan, LossIsTheMeanOverValidTokensAndHeads) {
  const auto branch = make_attention("score = [{ kind = \"dynamic_span\", longest = 16, ramp = 2 }]", 8, 2);
  const auto step = step_of(*branch);
  const Tensor x = normal({2, 5, 8}, 3), valid = at::ones({2, 5}, at::kBool);
  valid[1].slice(0, 2).fill_(false);
  std::map<std::string, Tensor> losses;
  const Batch batch;
  Pass pass{.batch = batch};
  pass.losses = &losses, pass.valid = valid;
  step->of_queries(x, pass);
  double sum = 0;
  for (int64_t lane = 0; lane < 2; ++lane)
    for (int64_t t = 0; t < (lane == 0 ? 5 : 2); ++t)
      for (int64_t h = 0; h < 2; ++h) {
        const double logit = (step->v[h] * x[lane][t]).sum().item<double>() + step->b[h].item<double>();
        sum += 16 / (1 + std::exp(-logit));
      }
  EXPECT_NEAR(losses.at("span").item<double>(), sum / 14, 1e-12);
}

TEST(DynamicSpan, Refusals) {
  EXPECT_THROW(make_attention("pattern = \"full\"\nscore = [\"dynamic_span\"]", 8, 1), Error);
  EXPECT_THROW(make_attention("score = [\"dynamic_span\", \"dynamic_span\"]", 8, 1), Error);
}

}  // namespace
}  // namespace kinfolk
