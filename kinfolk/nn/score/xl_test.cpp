#include "kinfolk/nn/score/xl.h"

#include "kinfolk/nn/qk/xl_bias.h"
#include "kinfolk/nn/tables.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

/// The step with relative keys that are given instead of projected.
struct GivenKeys : Xl {
  using Xl::Xl;
  Tensor given;  ///< [H, distances, d]
  std::vector<Tensor> prepare(const Tensor&, int64_t nearest, int64_t farthest) override {
    const Tensor rows = given.narrow(1, std::max<int64_t>(nearest, 0), farthest - std::max<int64_t>(nearest, 0) + 1);
    return {rows.transpose(1, 2), v, at::full({}, std::max<int64_t>(nearest, 0), at::kLong)};
  }
};

TEST(Xl, Golden) {
  for (const auto& one : golden::cases("attention/txl_relative")) {
    const auto branch = core_branch(one, "qk = [\"xl_bias\"]\nscore = [\"xl\"]");
    const Tensor q = one.at("in.q");
    Context context;
    context.size.width = q.size(1) * q.size(3);
    context.like = real();
    context.heads = {.count = q.size(1), .groups = q.size(1), .width = q.size(3)};
    context.heads.scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    const auto step = std::make_shared<GivenKeys>(Xl::Options{}, context);
    step->given = one.at("in.r").set_requires_grad(true);
    branch->score = {step};
    const auto bias = std::dynamic_pointer_cast<XlBias>(branch->qk[0]);
    expect_core(one, *branch, 0, {{"u", bias->u}, {"v", step->v}});
    golden::expect_gradient(step->given.grad(), one.at("grad.in.r"), one, "grad.in.r");
  }
}

TEST(Xl, GathersByDistanceInsideATile) {
  const auto branch = make_attention("score = [{ kind = \"xl\", clamp = 5 }]", 8, 2);
  auto step = std::dynamic_pointer_cast<Xl>(branch->score[0]);
  const Tensor q = normal({2, 2, 3, 4}, 1), scores = normal({2, 2, 3, 5}, 2);
  const Tensor i = at::tensor({4, 6, 9}, at::kLong).view({3, 1}), j = at::tensor({0, 1, 2, 3, 4}, at::kLong);
  const Tensor distance = (i - j).view({1, 1, 3, 5});
  const auto prepared = step->prepare(q, 0, 9);
  const Tensor got = step->apply({scores, q, distance, 0, 9}, prepared);
  const Tensor rows =
      step->r->forward(sinusoid(distance.clamp_max(5).view({3, 5}), 8, 10000, "halves", real())).view({3, 5, 2, 4});
  const Tensor want = scores + at::einsum("bhid,ijhd->bhij", {q + step->v.unsqueeze(1), rows}) * 0.5;
  EXPECT_LE(testing::distance(got, want), 1e-13);
}

}  // namespace
}  // namespace kinfolk
