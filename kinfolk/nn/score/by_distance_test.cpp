#include "kinfolk/nn/score/by_distance.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

/// The same branch in float32, where a kernel serves tables that learn, and in double, where tiles do.
void expect_kernel(const std::string& options, int64_t length) {
  const auto exact = make_attention(options, 32, 4), fast = make_attention(options, 32, 4, at::kFloat);
  {
    const at::NoGradGuard guard;
    const auto to = fast->named_parameters();
    for (const auto& p : exact->named_parameters()) to[p.key()].copy_(p.value());
  }
  const Tensor valid = at::ones({2, length}, at::kBool);
  valid[1].narrow(0, 5, 9).fill_(false);
  const Tensor x = normal({2, length, 32}, 5);
  const Outcome want = run_with_gradients(*exact, {x, valid}, {length});
  const Tensor x_fast = x.to(at::kFloat).set_requires_grad(true);
  const Tensor out = run(*fast, {x_fast, valid}, {length});
  (out * normal(out.sizes(), 99).to(at::kFloat)).sum().backward();
  const auto close = [&](const Tensor& got, const Tensor& w, const std::string& what) {
    EXPECT_TRUE(got.isfinite().all().item<bool>()) << options << " " << what;
    EXPECT_LE(distance(got.to(at::kDouble), w), 2e-5 * std::max(1.0, w.abs().max().item<double>()))
        << options << " " << what;
  };
  close(out, want.out, "output");
  close(x_fast.grad(), want.gradients.at("x"), "gradient of x");
  for (const auto& p : fast->named_parameters()) {
    if (p.value().grad().defined()) close(p.value().grad(), want.gradients.at(p.key()), "gradient of " + p.key());
  }
}

TEST(ByDistance, TheKernelIsTheDefinition) {
  for (const std::string score :
       {"\"alibi\"", "{ kind = \"t5\", buckets = 12, farthest = 50 }", "\"kerple\"",
        "{ kind = \"kerple\", form = \"power\" }", "{ kind = \"span\", longest = 60, ramp = 7 }", "\"distance\"",
        "{ kind = \"shaw\", clip = 5 }", "{ kind = \"shaw\", clip = 5, values = false }", "\"t5\", \"kerple\"",
        "\"t5\", { kind = \"shaw\", clip = 3 }"}) {
    expect_kernel("score = [" + score + "]", 200);
    expect_kernel("groups = 2\nqk = [\"xpos\"]\npattern = \"causal & window(70)\"\nscore = [" + score + "]", 133);
  }
}

TEST(ByDistance, SomeHeadsMaySeeNothing) {
  // Without its own position, the first token of the span sees no key: its row is 0, and so are its gradients.
  const auto branch = make_attention("score = [{ kind = \"span\", longest = 4, ramp = 2, own = false }]", 8, 2);
  const Outcome out = run_with_gradients(*branch, {normal({1, 9, 8}, 5)}, {9});
  EXPECT_EQ(out.out.select(1, 0).abs().max().item<double>(), 0);
  for (const auto& [name, gradient] : out.gradients) EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
}

}  // namespace
}  // namespace kinfolk
