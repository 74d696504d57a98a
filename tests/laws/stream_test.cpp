// One law for every member that streams: f(x1 ++ x2) = f(x1) ++ f(x2) for every split, in every form, in values and
// gradients; and what follows from it for states.
#include <filesystem>

#include "kinfolk/core/safetensors.h"
#include "tests/laws/bench.h"

namespace kinfolk::laws {
namespace {

constexpr double kBound = 1e-10;

class Stream : public Law {};

TEST_P(Stream, EverySplitGivesTheWhole) {
  const Bench bench(GetParam().recipe, 12);
  if (!bench.traits.streams) GTEST_SKIP() << bench.traits.why_not;
  const Result whole = bench.run(bench.tokens);
  const auto gradients = bench.gradients(whole);
  std::vector<std::vector<int64_t>> splits{{12}, {3, 8, 12}, {1, 2, 12}, {5, 10, 12}, {4, 4, 12}, single_steps(12)};
  for (int64_t cut = 1; cut < 12; ++cut) splits.push_back({cut, 12});
  for (const auto& cuts : splits) {
    const Result out = bench.pieces(cuts);
    const std::string what = ::testing::PrintToString(cuts);
    expect_same(out, whole, kBound, what);
    expect_same_gradients(bench.gradients(out), gradients, kBound, what);
  }
}

TEST_P(Stream, FormsAgree) {
  for (const int64_t length : {7, 140}) {  // within a chunk; over several
    const Bench bench(GetParam().recipe, length, 1);
    if (!bench.traits.streams) GTEST_SKIP() << bench.traits.why_not;
    const Result whole = bench.run(bench.tokens, nullptr, Form::parallel);
    const auto gradients = bench.gradients(whole);
    const Result chunked = bench.run(bench.tokens, nullptr, Form::chunked);
    expect_same(chunked, whole, kBound, text("chunked, no state, ", length));
    expect_same_gradients(bench.gradients(chunked), gradients, kBound, text("chunked, no state, ", length));
    const Result carried = bench.pieces({length / 3, length}, Form::chunked);
    expect_same(carried, whole, kBound, text("chunked, carried, ", length));
    expect_same_gradients(bench.gradients(carried), gradients, kBound, text("chunked, carried, ", length));
    const Result steps = bench.pieces(single_steps(length), Form::step);
    expect_same(steps, whole, kBound, text("steps, ", length));
    if (length < 20) expect_same_gradients(bench.gradients(steps), gradients, kBound, "steps");
  }
}

TEST_P(Stream, AStateThatWasSavedContinuesBitForBit) {
  const Bench bench(GetParam().recipe, 12);
  if (!bench.traits.streams) GTEST_SKIP() << bench.traits.why_not;
  const at::NoGradGuard guard;
  State state = bench.model->start(2);
  bench.run(bench.tokens.slice(1, 0, 7), &state);
  TensorFile file;
  for (const auto& [name, tensor] : state.flat()) file.tensors[name] = tensor.contiguous();
  const auto path = std::filesystem::path(::testing::TempDir()) / ("kinfolk_state_" + GetParam().name);
  write_tensors(path.string(), file);
  State loaded = State::from_flat(read_tensors(path.string()).tensors);
  std::filesystem::remove(path);
  EXPECT_EQ(loaded.bytes(), state.bytes());
  for (int64_t t = 7; t < 12; t += 2) {
    const Tensor piece = bench.tokens.slice(1, t, std::min<int64_t>(t + 2, 12));
    EXPECT_TRUE(bench.run(piece, &loaded).out.equal(bench.run(piece, &state).out)) << t;
  }
}

TEST_P(Stream, ACloneIsAlone) {
  const Bench bench(GetParam().recipe, 12);
  if (!bench.traits.streams) GTEST_SKIP() << bench.traits.why_not;
  const at::NoGradGuard guard;
  State state = bench.model->start(2);
  bench.run(bench.tokens.slice(1, 0, 7), &state);
  State copy = state.clone();
  const Tensor want = bench.run(bench.tokens.slice(1, 7), &state).out;
  const Tensor got = bench.run(bench.tokens.slice(1, 7), &copy).out;  // nothing of the first run is in the copy
  EXPECT_TRUE(got.equal(want));
}

TEST_P(Stream, StateBytesStayWhereBoundedAndGrowElsewhere) {
  const Bench bench(GetParam().recipe, 8);
  if (!bench.traits.streams || bench.traits.context > 0) GTEST_SKIP() << bench.traits.why_not;
  const at::NoGradGuard guard;
  State state = bench.model->start(2);
  std::vector<int64_t> bytes{state.bytes()};
  for (int call = 0; call < 20; ++call) {
    bench.run(bench.tokens, &state);
    bytes.push_back(state.bytes());
  }
  if (bench.traits.bounded) {
    // A memory may fill first: nothing grows once it has seen a few times its length.
    EXPECT_EQ(bytes.back(), bytes[bytes.size() / 2]) << ::testing::PrintToString(bytes);
  } else {
    EXPECT_GT(bytes.back(), bytes[bytes.size() / 2]) << ::testing::PrintToString(bytes);
  }
}

// Lanes can be taken from a state: reordered, repeated, dropped.
TEST_P(Stream, LanesOfAStateCanBeSelected) {
  const Bench bench(GetParam().recipe, 12);
  if (!bench.traits.streams) GTEST_SKIP() << bench.traits.why_not;
  const at::NoGradGuard guard;
  State state = bench.model->start(2);
  bench.run(bench.tokens.slice(1, 0, 7), &state);
  State picked = state.clone();
  const Tensor lanes = at::tensor({1, 0, 1}, at::kLong), rest = bench.tokens.slice(1, 7);
  picked.select(lanes);
  const Tensor want = bench.run(rest, &state).out.index_select(0, lanes);
  EXPECT_LE(apart(bench.run(rest.index_select(0, lanes), &picked).out, want), kBound);
}

TEST_P(Stream, WhatDoesNotStreamSaysWhy) {
  const Bench bench(GetParam().recipe, 6);
  if (bench.traits.streams) return;
  EXPECT_FALSE(bench.traits.why_not.empty());
  State state = bench.model->start(2);
  EXPECT_THROW(bench.run(bench.tokens, &state), Error);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Stream, ::testing::ValuesIn(members()), name_of);

}  // namespace
}  // namespace kinfolk::laws
