// attend in other types, with dropout, at lengths where memory and 32 bits end.
#include <ATen/autocast_mode.h>

#include <fstream>

#include "kinfolk/ops/attend.h"
#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

constexpr double kFloatBound = 1e-5;

TEST(AttendAtScale, DropoutIsTheSameInBackward) {
  at::manual_seed(15);
  Problem p;
  p.batch = 1, p.length = 20, p.heads = 2, p.groups = 1;
  p.make();
  p.plan.dropout = 0.4, p.plan.seed = 77;
  p.keys[0].v.requires_grad_(true);
  const Read one = p.run(false), two = p.run(false);
  EXPECT_EQ(difference(one.out, two.out), 0);
  const Tensor d_out = at::randn_like(one.out);
  // out is linear in v, so that <grad v, v> = <d_out, out> only when both passes drop the same weights.
  const Tensor g = torch::autograd::grad({one.out}, {p.keys[0].v}, {d_out})[0];
  EXPECT_NEAR((g * p.keys[0].v).sum().item<double>(), (d_out * one.out).sum().item<double>(), 1e-10);
  p.q[0].q.requires_grad_(true);
  const Tensor dq = torch::autograd::grad({p.run(false).out}, {p.q[0].q}, {d_out})[0].view({-1});
  const at::NoGradGuard guard;
  const Tensor flat = p.q[0].q.view({-1});
  for (int64_t n = 0; n < flat.numel(); n += 7) {
    const double held = flat[n].item<double>();
    flat[n] = held + 1e-6;
    const double up = (p.run(false).out * d_out).sum().item<double>();
    flat[n] = held - 1e-6;
    const double down = (p.run(false).out * d_out).sum().item<double>();
    flat[n] = held;
    EXPECT_NEAR(dq[n].item<double>(), (up - down) / 2e-6, 1e-7);
  }
  p.plan.seed = 78;
  EXPECT_GT(difference(p.run(false).out, one.out), 1e-3);
  Tensor mean = at::zeros_like(one.out);
  for (uint64_t seed = 0; seed < 400; ++seed) p.plan.seed = seed, mean += p.run(false).out / 400;
  p.plan.dropout = 0;
  EXPECT_LE(difference(mean, p.run(false).out), 0.25);
}

TEST(AttendAtScale, Bfloat16ComputesInFloat) {
  at::manual_seed(16);
  Problem p;
  p.length = 65, p.type = at::kBFloat16, p.pattern = "causal & window(30)";
  p.make();
  const auto want = p.definition();
  for (const bool plain : {true, false}) {
    for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
    const Read got = p.run(plain);
    EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
    EXPECT_EQ(got.lse.scalar_type(), at::kFloat);
    EXPECT_LE(difference(got.out, want.out), 0.01);
    EXPECT_LE(difference(got.lse, want.lse), 0.01);
    for (const auto& g : torch::autograd::grad({got.out.sum()}, {p.q[0].q, p.keys[0].v})) {
      EXPECT_EQ(g.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(g.isfinite().all().item<bool>());
    }
  }
}

TEST(AttendAtScale, AutocastMakesTheTypesAlike) {
  at::manual_seed(18);
  Problem p;
  p.length = 40, p.type = at::kFloat, p.pattern = "causal & window(30)";
  p.make();
  LearnedStep step(p.draw({4, 40}), p.draw({8}), 0);
  p.more = {step.table, step.w};
  for (const bool steps : {false, true}) {
    if (steps) p.score = {&step};
    p.keys[0].v = p.keys[0].v.detach().to(at::kFloat);
    const Tensor want = p.dense().out;
    p.keys[0].v = p.keys[0].v.to(at::kBFloat16);  // as a projection under autocast leaves it
    for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
    for (const bool plain : {true, false}) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const Read got = p.run(plain);
      std::vector<Tensor> leaves = p.leaves();
      const auto gradients =
          torch::autograd::grad({got.out.to(at::kFloat).sum()}, leaves, {}, std::nullopt, false, true);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
      EXPECT_EQ(got.lse.scalar_type(), at::kFloat);
      EXPECT_LE(difference(got.out, want), 0.03);
      for (size_t n = 0; n < leaves.size(); ++n)
        if (gradients[n].defined()) EXPECT_EQ(gradients[n].scalar_type(), leaves[n].scalar_type());
    }
    for (auto& leaf : p.leaves()) leaf.requires_grad_(false);
  }
}

TEST(AttendAtScale, WindowSeesItsOwnNumberOfKeys) {
  Problem p;
  p.batch = 1, p.heads = p.groups = 1, p.length = p.width = 12, p.pattern = "causal & window(4)";
  p.make();
  p.q[0].q.zero_();
  p.keys[0].v = at::eye(12, at::kDouble).view({1, 1, 12, 12});
  for (const bool plain : {true, false}) {
    const Tensor count = p.run(plain).out.gt(0).sum(-1).view({12});
    for (int64_t t = 0; t < 12; ++t) EXPECT_EQ(count[t].item<int64_t>(), std::min<int64_t>(t + 1, 4));
  }
}

int64_t peak_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
  return -1;
}

TEST(AttendAtScale, MemoryGrowsWithLengthTimesWindow) {
  Problem p;
  p.batch = 1, p.heads = p.groups = 1, p.length = 100000, p.width = 32, p.type = at::kFloat;
  p.pattern = "causal & window(256)";
  p.make();
  p.plan.query_tile = 128, p.plan.key_tile = 512;
  for (const bool plain : {false, true}) {
    for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
    const int64_t before = peak_kilobytes();
    ASSERT_GT(before, 0);
    const Read read = p.run(plain);
    torch::autograd::grad({read.out.sum()}, p.leaves());
    EXPECT_LT(peak_kilobytes() - before, 200 * 1024) << plain;
  }
}

TEST(AttendAtScale, PositionsBeyond46341) {
  at::manual_seed(17);
  Problem p;
  p.batch = 1, p.heads = p.groups = 1, p.length = 46500, p.width = 16, p.type = at::kFloat;
  p.pattern = "causal & window(64)";
  p.make();
  p.plan.query_tile = 128, p.plan.key_tile = 512;
  const Tensor want = p.definition({}, 46300).out.slice(2, 46300);
  for (const bool plain : {false, true}) EXPECT_LE(difference(p.run(plain).out.slice(2, 46300), want), kFloatBound);
}

}  // namespace
}  // namespace kinfolk
