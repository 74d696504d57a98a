#include "kinfolk/nn/memory/cache.h"

#include "kinfolk/nn/memory/newest.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

std::vector<int64_t> filled(const Tensor& at, int64_t lane = 0) {
  std::vector<int64_t> out;
  for (int64_t c = 0; c < at.size(1); ++c)
    if (const int64_t p = at[lane][c].item<int64_t>(); p >= 0) out.push_back(p);
  return out;
}

std::vector<int64_t> last(int64_t count, int64_t seen) {
  std::vector<int64_t> out;
  for (int64_t p = std::max<int64_t>(0, seen - count); p < seen; ++p) out.push_back(p);
  return out;
}

TEST(Cache, KeepsExactlyTheKeysThatTheNextQueryCanSee) {
  for (const std::string qk : {"[]", "[\"rope\"]", "[{ kind = \"rerope\", window = 3 }]"}) {
    const auto branch = make_attention("pattern = \"causal & window(8)\"\nqk = " + qk, 8, 2);
    const Sequence s{normal({1, 12, 8}, 5)};
    const auto whole = branch->project(s.x);
    const Tensor keys = branch->prepare_keys(whole.k, at::arange(12, at::kLong).unsqueeze(0)).at(0);
    State state = branch->start(1, real());
    const int64_t bytes = state.bytes();
    const Batch batch;
    for (int64_t from = 0; from < 12;) {
      const int64_t n = from == 0 ? 6 : 1;
      Pass pass{.batch = batch};
      pass.position = at::arange(from, from + n, at::kLong).unsqueeze(0);
      branch->forward(s.x.narrow(1, from, n), pass, &state);
      from += n;
      // The own key joins at its call, so a window of 8 keeps 7.
      const auto want = last(7, from);
      EXPECT_EQ(filled(state.tensors.at("at")), want);
      const int64_t count = static_cast<int64_t>(want.size());
      const Tensor kept = state.tensors.at("k"), values = state.tensors.at("v");
      EXPECT_LE(distance(kept.narrow(2, kept.size(2) - count, count), keys.narrow(2, from - count, count)), 1e-14);
      EXPECT_LE(distance(values.narrow(2, values.size(2) - count, count), whole.v.narrow(2, from - count, count)),
                1e-14);
      EXPECT_EQ(state.bytes(), bytes);
    }
  }
}

TEST(Cache, WithoutAHorizonGrowsByAColumnAToken) {
  const auto branch = make_attention("groups = 1", 8, 2);
  State state = branch->start(3, real());
  EXPECT_EQ(state.bytes(), 0);
  run(*branch, {normal({3, 5, 8}, 1)}, {4, 1}, &state);
  EXPECT_EQ(state.bytes(), 3 * 5 * ((4 + 4) * 8 + 8 + 8));
  EXPECT_FALSE(branch->traits().bounded);
}

TEST(Cache, WindowOfOneKeepsNothing) {
  const auto branch = make_attention("pattern = \"causal & window(1)\"", 8, 2);
  State state = branch->start(1, real());
  const Sequence s{normal({1, 4, 8}, 2)};
  EXPECT_LE(distance(run(*branch, s, {1, 2, 1}, &state), branch->out->forward(branch->v->forward(s.x))), 1e-12);
  EXPECT_EQ(state.bytes(), 0);
}

TEST(Cache, LanesFillAlone) {
  const auto branch = make_attention("", 8, 2);
  const Tensor valid = at::tensor({0, 1, 0, 1, 1, 0, 1, 1, 1, 1}, at::kLong).view({2, 5}).to(at::kBool);
  State state = branch->start(2, real());
  run(*branch, {normal({2, 5, 8}, 3), valid}, {2, 3}, &state);
  EXPECT_EQ(state.tensors.at("at").size(1), 4);
  EXPECT_EQ(filled(state.tensors.at("at"), 0), last(9, 3));
  EXPECT_EQ(filled(state.tensors.at("at"), 1), last(9, 4));
  EXPECT_EQ(state.tensors.at("at")[0][0].item<int64_t>(), -1);
}

TEST(Newest, GathersPerLaneAndPassesGradients) {
  const Tensor at = at::tensor({-1, 0, -1, 1, 2, 4, -1, -1, 5, -1}, at::kLong).view({2, 5});
  const Tensor t = normal({2, 3, 5}, 1).set_requires_grad(true);
  const Newest newest(at, 3, true);
  EXPECT_TRUE(newest.keep(at, 1).equal(at::tensor({0, 1, 2, -1, 4, 5}, at::kLong).view({2, 3})));
  const Tensor kept = newest.keep(t, 2);
  EXPECT_EQ(distance(kept[0].select(1, 2), t[0].select(1, 4)), 0);
  EXPECT_EQ(distance(kept[1].select(1, 1), t[1].select(1, 0)), 0);
  kept.select(2, 2).sum().backward();
  EXPECT_EQ(t.grad().sum().item<double>(), 6);
  EXPECT_EQ(Newest(at, -1, true).keep(at, 1).size(1), 3);
}

}  // namespace
}  // namespace kinfolk
