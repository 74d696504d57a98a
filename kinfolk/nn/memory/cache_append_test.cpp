#include "kinfolk/nn/memory/cache_append.h"

#include <gtest/gtest.h>

#include "tests/support/attention.h"

namespace kinfolk {
namespace {

/// Positions [2, C] and keys [2, 3, C, 4] of tokens from .. from + count - 1.
struct Columns {
  Tensor at, k;
  static Columns of(int64_t from, int64_t count) {
    const Tensor at = at::arange(from, from + count, at::kLong).repeat({2, 1});
    return {at, at.to(at::kFloat).view({2, 1, count, 1}).mul(at::arange(1, 5)).expand({2, 3, count, 4}).contiguous()};
  }
  Columns with(const Columns& fresh) const {
    const auto made = append({{at, fresh.at, 1}, {k, fresh.k, 2}});
    return {made[0], made[1]};
  }
  bool is(const Columns& other) const { return at.equal(other.at) && k.equal(other.k); }
  const void* memory() const { return k.storage().data_ptr().get(); }
};

TEST(CacheAppend, StepsAreWrittenBehindWhatIsKept) {
  const at::NoGradGuard guard;
  Columns now = Columns::of(0, 0);
  int64_t moves = 0;
  const void* memory = nullptr;
  for (int64_t t = 0; t < 500; ++t) {
    now = now.with(Columns::of(t, 1));
    moves += now.memory() != memory;
    memory = now.memory();
  }
  EXPECT_TRUE(now.is(Columns::of(0, 500)));
  EXPECT_LE(moves, 30);
  EXPECT_TRUE(now.with(Columns::of(500, 100)).is(Columns::of(0, 600)));
}

TEST(CacheAppend, StatesThatShareMemoryDoNotMeet) {
  const at::NoGradGuard guard;
  const Columns trunk = Columns::of(0, 5).with(Columns::of(5, 1));
  const Columns a = trunk.with(Columns::of(6, 1)), b = trunk.with(Columns::of(70, 2));
  EXPECT_EQ(a.memory(), trunk.memory());
  EXPECT_NE(b.memory(), trunk.memory());
  const Columns c = a.with(Columns::of(7, 1));
  EXPECT_EQ(c.memory(), trunk.memory());
  EXPECT_TRUE(trunk.is(Columns::of(0, 6)));
  EXPECT_TRUE(a.is(Columns::of(0, 7)));
  EXPECT_TRUE(c.is(Columns::of(0, 8)));
  EXPECT_TRUE(b.at.narrow(1, 6, 2).equal(Columns::of(70, 2).at));
}

TEST(CacheAppend, AWindowSlidesAndMovesNowAndThen) {
  const at::NoGradGuard guard;
  Columns now = Columns::of(0, 20);
  int64_t moves = 0;
  for (int64_t t = 20; t < 200; ++t) {
    const void* memory = now.memory();
    const Columns all = now.with(Columns::of(t, 1));
    now = {all.at.narrow(1, 1, 20), all.k.narrow(2, 1, 20)};
    moves += now.memory() != memory;
    ASSERT_TRUE(now.is(Columns::of(t - 19, 20))) << t;
  }
  EXPECT_LE(moves, 20);
  EXPECT_GE(moves, 2);
}

TEST(CacheAppend, OneLaneOfSeveralIsWrittenAlone) {
  const at::NoGradGuard guard;
  const Columns both = Columns::of(0, 5).with(Columns::of(5, 1)), fresh = Columns::of(6, 1);
  for (const int64_t lane : {0, 1}) {
    const auto of_lane = [&](const Columns& x) { return Columns{x.at.narrow(0, lane, 1), x.k.narrow(0, lane, 1)}; };
    EXPECT_TRUE(of_lane(both).with(of_lane(fresh)).is(of_lane(Columns::of(0, 7)))) << lane;
  }
  const Columns next = both.with(Columns::of(6, 2));
  EXPECT_TRUE(next.is(Columns::of(0, 8)));
  EXPECT_TRUE(both.is(Columns::of(0, 6)));
}

TEST(CacheAppend, GradientsFlow) {
  const Tensor at = at::zeros({1, 1}, at::kLong), a = at::ones({1, 1, 1, 2}), b = at::ones({1, 1, 1, 2});
  a.set_requires_grad(true), b.set_requires_grad(true);
  const auto made = append({{at, at, 1}, {a, b, 2}});
  (made[1] * made[1]).sum().backward();
  EXPECT_TRUE(a.grad().equal(at::full({1, 1, 1, 2}, 2.0f)) && b.grad().equal(a.grad()));
}

TEST(CacheAppend, OtherTypesAreConverted) {
  const at::NoGradGuard guard;
  const Tensor at = at::zeros({1, 1}, at::kLong), k = at::ones({1, 1, 1, 2});
  const auto made = append({{at, at, 1}, {k, k.to(at::kBFloat16), 2}});
  EXPECT_EQ(made[1].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(made[1].equal(at::ones({1, 1, 2, 2}, at::kBFloat16)));
}

/// A branch's states branch off, go on in turns, and are read in inference mode and outside of it.
TEST(CacheAppend, StatesOfABranchMayBeCopiedAnywhere) {
  using namespace testing;
  for (const std::string pattern : {"causal", "causal & window(6)"}) {
    const auto branch = make_attention("qk = [{ kind = \"rerope\", window = 4 }]\npattern = \"" + pattern + "\"", 8, 2);
    const Tensor x = normal({2, 30, 8}, 3), y = normal({2, 30, 8}, 4);
    const auto text_of = [&](int64_t from) { return at::cat({x.narrow(1, 0, from), y.narrow(1, from, 30 - from)}, 1); };
    const at::NoGradGuard guard;
    const Batch batch;
    const auto step = [&](const Tensor& x, int64_t t, State& state) {
      Pass pass{.batch = batch};
      pass.position = at::full({2, 1}, t, at::kLong);
      return branch->forward(x.narrow(1, t, 1), pass, &state);
    };
    std::vector<State> states{branch->start(2, real())};
    std::vector<Tensor> texts{x}, want{run(*branch, {x}, {30})};
    for (int64_t t = 0; t < 30; ++t) {
      if (t % 5 == 3) {
        states.push_back(states[0]), texts.push_back(text_of(t)), want.push_back(run(*branch, {texts.back()}, {30}));
      }
      for (size_t n = 0; n < states.size(); ++n) {
        std::optional<c10::InferenceMode> inference;
        if ((t + static_cast<int64_t>(n)) % 7 == 0) inference.emplace(true);
        EXPECT_LE(distance(step(texts[n], t, states[n]), want[n].narrow(1, t, 1)), 1e-12) << pattern << n << "," << t;
      }
    }
  }
}

}  // namespace
}  // namespace kinfolk
