#include "kinfolk/nn/qk/xpos.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

std::string with(double gamma, double scale_base, const std::string& layout) {
  return text("qk = [{ kind = \"xpos\", gamma = ", write_toml_value(Value(gamma)),
              ", scale_base = ", write_toml_value(Value(scale_base)), ", layout = \"", layout, "\" }]");
}

// The row's turned queries and keys stand about a centre of their own; the output does not depend on it.
TEST(Xpos, Golden) {
  for (const auto& one : golden::cases("attention/xpos")) {
    const auto& c = one.config;
    const auto branch = core_branch(one, with(c.at("gamma"), c.at("scale_base"), c.at("layout")));
    const auto step = std::dynamic_pointer_cast<Xpos>(branch->qk[0]);
    const Tensor q = one.at("in.q").set_requires_grad(true), k = one.at("in.k").set_requires_grad(true),
                 v = one.at("in.v").set_requires_grad(true);
    const Tensor k_at = at::arange(k.size(2), at::kLong).repeat({k.size(0), 1});
    const Tensor q_at = k_at.narrow(1, k.size(2) - q.size(2), q.size(2));
    const Tensor centre = at::full({1, 1}, c.at("center").get<int64_t>(), at::kLong);
    const Tensor q_turned = step->turned(q, q_at, centre, 1), k_turned = step->turned(k, k_at, centre, -1);
    golden::expect_close(q_turned, one.at("out.q"), one, "out.q");
    golden::expect_close(k_turned, one.at("out.k"), one, "out.k");
    const Read read = branch->look(q, q_at, {}, {Keys{k, v, k_at, {}, {}, {}}});
    golden::expect_close(read.out, one.at("out.o"), one, "out.o");
    Tensor loss = (read.out * one.at("cot.o")).sum();
    if (one.has("cot.q")) loss = loss + (q_turned * one.at("cot.q")).sum();
    if (one.has("cot.k")) loss = loss + (k_turned * one.at("cot.k")).sum();
    loss.backward();
    golden::expect_gradient(q.grad(), one.at("grad.in.q"), one, "grad.in.q");
    golden::expect_gradient(k.grad(), one.at("grad.in.k"), one, "grad.in.k");
    golden::expect_gradient(v.grad(), one.at("grad.in.v"), one, "grad.in.v");
  }
}

double score(Attention& branch, const Tensor& q, const Tensor& k, int64_t i, int64_t j) {
  const Tensor at = at::full({1, 1}, i, at::kLong), key_at = at::full({1, 1}, j, at::kLong);
  return branch.look(q, at, {}, {Keys{k, k, key_at, {}, {}, {}}}).lse.item<double>();
}

TEST(Xpos, ScoresDependOnTheDistanceHoweverLongTheText) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const auto branch = make_attention(with(0.4, 8, "half"), 8, 1);
    const Tensor q = normal({1, 1, 1, 8}, 1).to(type), k = normal({1, 1, 1, 8}, 2).to(type);
    for (const int64_t t : {0, 1, 7, 100, 300}) {
      const double near = score(*branch, q, k, t, 0);
      for (const int64_t start : {1, 219, 220, 221, 4096, 100000, 10000000}) {
        EXPECT_NEAR(score(*branch, q, k, start + t, start), near, type == at::kDouble ? 1e-9 : 2e-5)
            << t << " from " << start;
      }
    }
    EXPECT_GT(std::abs(score(*branch, q, k, 7, 0) - score(*branch, q, k, 8, 0)), 1e-4);
  }
}

// scale_base 1: some thirty tokens share a centre, so that 200 tokens pass several.
TEST(Xpos, PiecesOverManyCentres) {
  const auto branch = make_attention(with(0.4, 1, "half"), 8, 2);
  EXPECT_TRUE(branch->keys_final());
  EXPECT_TRUE(branch->traits().relative);
  const Sequence s{normal({2, 200, 8}, 5)};
  const Outcome whole = run_with_gradients(*branch, s, {200});
  EXPECT_TRUE(whole.out.isfinite().all().item<bool>());
  for (const auto& [name, gradient] : whole.gradients) EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name;
  expect_same(run_with_gradients(*branch, s, {20, 45, 1, 134}), whole, "pieces");
  // With a step behind it, keys are cached raw: the same numbers.
  const auto raw = make_attention("qk = [{ kind = \"xpos\", scale_base = 1 }, \"rope\"]", 8, 2),
             pairs = make_attention("qk = [\"rope\", { kind = \"xpos\", scale_base = 1 }]", 8, 2);
  EXPECT_FALSE(raw->keys_final());
  EXPECT_TRUE(pairs->keys_final());
  expect_same(run_with_gradients(*raw, s, {20, 45, 1, 134}), run_with_gradients(*pairs, s, {200}), "order", 1e-9);
  // The definition, with all powers about one centre, in double.
  const auto wide = make_attention(with(0.4, 1, "half"), 8, 2);
  const auto step = std::dynamic_pointer_cast<Xpos>(wide->qk[0]);
  const Tensor at = at::arange(60, at::kLong).unsqueeze(0), q = normal({1, 2, 60, 4}, 7), k = normal({1, 2, 60, 4}, 8);
  Tensor want = at::zeros({60, 60}, real());
  for (int64_t i = 0; i < 60; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      const Tensor c = at::full({1, 1}, j, at::kLong);  // about the key
      want[i][j] = (step->turned(q.narrow(2, i, 1), at.narrow(1, i, 1), c, 1) *
                    step->turned(k.narrow(2, j, 1), at.narrow(1, j, 1), c, -1))[0][0]
                       .sum() *
                   0.5;
    }
  want.masked_fill_(at::ones({60, 60}, at::kBool).triu(1), -INFINITY);
  const Tensor lse = wide->look(q, at, {}, {Keys{k, k, at, {}, {}, {}}}).lse;
  EXPECT_LE(distance(lse[0][0], want.logsumexp(-1)), 1e-12);
}

TEST(Xpos, RefusesPatternsThatSeeTheFuture) {
  EXPECT_THROW(make_attention("pattern = \"full\"\nqk = [\"xpos\"]", 8, 1), Error);
}

}  // namespace
}  // namespace kinfolk
