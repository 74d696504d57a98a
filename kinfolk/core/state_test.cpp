#include "kinfolk/core/state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

State sample(int64_t lanes, double first = 0) {
  State state;
  state.tensors["seen"] = at::arange(lanes, at::kLong) + static_cast<int64_t>(first);
  state.parts["layer.0"].parts["branch.0"].tensors["k"] =
      at::arange(lanes * 6, at::kFloat).reshape({lanes, 2, 3}) + first;
  state.parts["layer.10"].tensors["sum"] = at::ones({lanes, 2, 2}) * (first + 1);
  return state;
}

TEST(State, FlatNamesRoundTrip) {
  const State state = sample(2);
  const auto flat = state.flat();
  ASSERT_EQ(flat.size(), 3u);
  EXPECT_TRUE(flat.count("layer.0/branch.0/k"));
  const State back = State::from_flat(flat);
  EXPECT_TRUE(at::equal(back.parts.at("layer.0").parts.at("branch.0").tensors.at("k"), flat.at("layer.0/branch.0/k")));
  EXPECT_EQ(back.flat().size(), 3u);
  EXPECT_TRUE(State().empty());
  EXPECT_TRUE(State().flat().empty());
}

TEST(State, BytesAreThoseOfTheTensors) { EXPECT_EQ(sample(2).bytes(), 2 * 8 + 2 * 6 * 4 + 2 * 4 * 4); }

TEST(State, CloneSharesNothing) {
  State a = sample(2);
  State b = a.clone();
  a.parts["layer.10"].tensors["sum"].fill_(7);
  EXPECT_EQ(b.parts["layer.10"].tensors["sum"].max().item<float>(), 1);
}

TEST(State, DetachCutsTheGraph) {
  State state = sample(1);
  Tensor& k = state.parts["layer.0"].parts["branch.0"].tensors["k"];
  k = k.requires_grad_() * 2;
  state.detach();
  EXPECT_FALSE(state.parts["layer.0"].parts["branch.0"].tensors["k"].requires_grad());
}

TEST(State, SelectReordersRepeatsAndDropsLanes) {
  State state = sample(3);
  state.select(at::tensor({2, 0, 2, 2}, at::kLong));
  EXPECT_TRUE(at::equal(state.tensors["seen"], at::tensor({2, 0, 2, 2}, at::kLong)));
  EXPECT_EQ(state.parts["layer.0"].parts["branch.0"].tensors["k"].sizes(), at::IntArrayRef({4, 2, 3}));
  EXPECT_EQ(state.parts["layer.0"].parts["branch.0"].tensors["k"][3][0][0].item<float>(), 12);
}

TEST(State, PutLaneOverwritesOneLaneAndNothingElse) {
  State state = sample(3);
  const State before = state.clone();
  const State other = sample(2, 100);
  const Tensor held = state.tensors["seen"];
  state.put_lane(1, other, 0);
  EXPECT_TRUE(at::equal(state.tensors["seen"], at::tensor({0, 100, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(held, before.tensors.at("seen")));  // whoever holds the old tensor keeps it
  const Tensor k = state.parts["layer.0"].parts["branch.0"].tensors["k"];
  EXPECT_TRUE(at::equal(k[1], other.parts.at("layer.0").parts.at("branch.0").tensors.at("k")[0]));
  EXPECT_TRUE(at::equal(k[0], before.parts.at("layer.0").parts.at("branch.0").tensors.at("k")[0]));
  EXPECT_TRUE(at::equal(k[2], before.parts.at("layer.0").parts.at("branch.0").tensors.at("k")[2]));
}

TEST(State, PutLaneRefusesAnotherMembersState) {
  State state = sample(2);
  State other = sample(1);
  other.parts["layer.10"].tensors.clear();
  EXPECT_THROW(state.put_lane(0, other), Error);
  State fewer = sample(1);
  fewer.parts.erase("layer.10");
  EXPECT_THROW(state.put_lane(0, fewer), Error);
}

TEST(State, PutLaneThatFailsChangesNothing) {
  State state = sample(2);
  const auto before = state.clone().flat();
  State other = sample(1, 50);
  other.parts["layer.10"].tensors["sum"] = at::ones({1, 3, 3});
  EXPECT_THROW(state.put_lane(0, other), Error);
  for (const auto& [name, tensor] : state.flat()) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
}

TEST(State, PutLaneFillsTheShorterCacheAtTheLeft) {
  const auto cache = [](int64_t lanes, int64_t columns, int64_t first) {
    State state;
    state.tensors["at"] = (at::arange(columns, at::kLong) + first).expand({lanes, columns}).contiguous();
    state.tensors["k"] = at::ones({lanes, 2, columns, 3}) * static_cast<double>(first + 1);
    return state;
  };
  State longer = cache(2, 4, 0);
  longer.put_lane(1, cache(1, 2, 7));
  EXPECT_TRUE(at::equal(longer.tensors["at"], at::tensor({0, 1, 2, 3, -1, -1, 7, 8}, at::kLong).reshape({2, 4})));
  EXPECT_EQ(longer.tensors["k"][1].sum().item<float>(), 2 * 2 * 3 * 8);
  EXPECT_EQ(longer.tensors["k"][1].slice(1, 0, 2).abs().max().item<float>(), 0);
  State shorter = cache(2, 1, 0);
  shorter.put_lane(0, cache(3, 3, 4), 2);
  EXPECT_TRUE(at::equal(shorter.tensors["at"], at::tensor({4, 5, 6, -1, -1, 0}, at::kLong).reshape({2, 3})));
  State empty = cache(2, 3, 0);
  empty.put_lane(0, cache(1, 0, 0));  // a reset
  EXPECT_TRUE(at::equal(empty.tensors["at"], at::tensor({-1, -1, -1, 0, 1, 2}, at::kLong).reshape({2, 3})));
}

TEST(State, PutLaneDropsColumnsThatAreEmptyInEveryLane) {
  State state, fresh;
  state.tensors["at"] = at::tensor({0, 1, 2, 3, 4, -1, -1, -1, 0, 1}, at::kLong).reshape({2, 5});
  state.tensors["k"] = at::arange(2 * 3 * 5 * 2, at::kFloat).reshape({2, 3, 5, 2});
  state.tensors["k2"] = at::arange(2 * 3 * 4 * 2, at::kFloat).reshape({2, 3, 4, 2});  // of the newest 4
  state.tensors["sum"] = at::ones({2, 5});                                            // as wide, and no column
  fresh.tensors["at"] = at::zeros({1, 0}, at::kLong);
  fresh.tensors["k"] = at::zeros({1, 3, 0, 2});
  fresh.tensors["k2"] = at::zeros({1, 3, 0, 2});
  fresh.tensors["sum"] = at::zeros({1, 5});
  const State before = state.clone();
  state.put_lane(0, fresh);
  EXPECT_TRUE(at::equal(state.tensors["at"], at::tensor({-1, -1, 0, 1}, at::kLong).reshape({2, 2})));
  EXPECT_TRUE(at::equal(state.tensors["k"][1], before.tensors.at("k")[1].slice(1, 3)));
  EXPECT_TRUE(at::equal(state.tensors["k2"][1], before.tensors.at("k2")[1].slice(1, 2)));
  EXPECT_EQ(state.tensors["sum"].size(1), 5);
  EXPECT_EQ(state.held_bytes(), state.bytes());
  state.put_lane(1, fresh);
  EXPECT_EQ(state.tensors["at"].size(1), 0);
  EXPECT_EQ(state.tensors["k"].numel() + state.tensors["k2"].numel(), 0);
}

TEST(State, PutLaneRefusesLanesThatAreNotThere) {
  State state = sample(2);
  EXPECT_THROW(state.put_lane(2, sample(1)), Error);
  EXPECT_THROW(state.put_lane(-1, sample(1)), Error);
  EXPECT_THROW(state.put_lane(0, sample(1), 1), Error);
}

}  // namespace
}  // namespace kinfolk
