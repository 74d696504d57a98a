// What may not matter: the future, the other lanes, padding, the documents before, the absolute place, the number of
// the run.
#include "tests/laws/bench.h"

namespace kinfolk::laws {
namespace {

constexpr double kBound = 1e-10;

class Alone : public Law {};

TEST_P(Alone, TheFutureMovesNothing) {
  const Bench bench(GetParam().recipe, 12);
  if (!bench.traits.causal) GTEST_SKIP() << bench.traits.why_not;
  const at::NoGradGuard guard;
  const Tensor plain = bench.run(bench.tokens).out;
  for (int64_t t = 1; t < 12; ++t) {
    Tensor changed = bench.tokens.clone();
    changed.slice(1, t).add_(5).remainder_(17);
    const Tensor out = bench.run(changed).out;
    EXPECT_EQ(apart(out.slice(1, 0, t), plain.slice(1, 0, t)), 0) << t;
    EXPECT_GT(apart(out.slice(1, t), plain.slice(1, t)), 1e-6) << t << ": the change itself must show";
  }
}

TEST_P(Alone, LanesDoNotMeet) {
  const Bench bench(GetParam().recipe, 9, 3);
  const at::NoGradGuard guard;
  const Tensor together = bench.run(bench.tokens).out;
  const Tensor order = at::tensor({2, 0, 1}, at::kLong);
  EXPECT_LE(apart(bench.run(bench.tokens.index_select(0, order)).out, together.index_select(0, order)), kBound);
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_LE(apart(bench.run(bench.tokens.slice(0, b, b + 1)).out[0], together[b]), kBound) << b;
  }
}

/// The same tokens among padding: `places[b]` says where each of lane b went.
struct Padded {
  Tensor ids, valid;
  std::vector<std::vector<int64_t>> places;
  Padded(const Tensor& tokens, std::vector<std::vector<int64_t>> where, int64_t length) : places(std::move(where)) {
    const int64_t batch = tokens.size(0);
    ids = at::full({batch, length}, 3, at::kLong);
    valid = at::zeros({batch, length}, at::kBool);
    for (int64_t b = 0; b < batch; ++b) {
      const Tensor at = at::tensor(places[b], at::kLong);
      ids[b].index_put_({at}, tokens[b].slice(0, 0, at.numel()));
      valid[b].index_fill_(0, at, 1);
    }
  }
  Tensor taken(const Tensor& out, int64_t b) const { return out[b].index_select(0, at::tensor(places[b], at::kLong)); }
};

std::vector<Padded> paddings(const Tensor& tokens) {                              // tokens [2, 7]
  return {Padded(tokens, {{3, 4, 5, 6, 7, 8, 9}, {0, 1, 2, 3, 4, 5, 6}}, 10),     // left; right
          Padded(tokens, {{0, 2, 3, 6, 7, 8, 10}, {1, 2, 3, 4, 9, 10, 11}}, 12),  // gaps
          Padded(tokens, {{2, 3, 4, 5, 6, 7, 8}, {5}}, 9)};                       // one lane far shorter
}

TEST_P(Alone, PaddingMovesNothing) {
  const Bench bench(GetParam().recipe, 7);
  int which = 0;
  for (const auto& padded : paddings(bench.tokens)) {
    const std::string what = text("padding ", which++);
    const Facts facts{{"valid", padded.valid}};
    const Result out = bench.run(padded.ids, nullptr, Form::automatic, facts);
    const double outside =
        out.out.detach().masked_select(padded.valid.logical_not().unsqueeze(-1)).abs().sum().item<double>();
    EXPECT_EQ(outside, 0) << what << ": rows of padding are zero";
    for (int64_t b = 0; b < 2; ++b) {
      const int64_t count = static_cast<int64_t>(padded.places[b].size());
      const Result alone = bench.run(bench.tokens.slice(0, b, b + 1).slice(1, 0, count));
      EXPECT_LE(apart(padded.taken(out.out, b), alone.out[0]), kBound) << what << " lane " << b;
    }
    // What padding holds is nobody's business, and it takes part in no gradient.
    Tensor other = padded.ids.where(padded.valid, padded.ids.add(9).remainder(17));
    const Result again = bench.run(other, nullptr, Form::automatic, facts);
    EXPECT_LE(apart(again.out, out.out), kBound) << what;
    expect_same_gradients(bench.gradients(again), bench.gradients(out), kBound, what);
  }
}

TEST_P(Alone, PaddingLeavesStatesAsTheyWere) {
  Bench bench(GetParam().recipe, 7);
  if (!bench.traits.streams) GTEST_SKIP() << bench.traits.why_not;
  const at::NoGradGuard guard;
  int which = 0;
  for (const auto& padded : paddings(bench.tokens)) {
    const int64_t length = padded.ids.size(1);
    const Tensor whole = bench.run(padded.ids, nullptr, Form::automatic, {{"valid", padded.valid}}).out;
    bench.tokens = padded.ids;
    for (const auto& cuts :
         std::vector<std::vector<int64_t>>{{1, length}, {4, length}, {5, 7, length}, single_steps(length)}) {
      const Result out = bench.pieces(cuts, Form::automatic, {{"valid", padded.valid}});
      EXPECT_LE(apart(out.out, whole), kBound) << "padding " << which << ", cuts " << ::testing::PrintToString(cuts);
    }
    ++which;
  }
}

TEST_P(Alone, DocumentsDoNotMeet) {
  const Bench bench(GetParam().recipe, 12);
  if (!bench.traits.causal) GTEST_SKIP() << bench.traits.why_not;
  // Lane 0: documents of 4, 5, 3 tokens; lane 1: of 7 and 5, with numbers that fall.
  const Tensor segment =
      at::tensor({0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 9, 9, 9, 9, 9, 9, 9, 4, 4, 4, 4, 4}, at::kLong).view({2, 12});
  const Facts facts{{"segment", segment}};
  const Result out = bench.run(bench.tokens, nullptr, Form::automatic, facts);
  const std::vector<std::array<int64_t, 3>> documents{{0, 0, 4}, {0, 4, 9}, {0, 9, 12}, {1, 0, 7}, {1, 7, 12}};
  for (const auto& [lane, from, to] : documents) {
    const std::string what = text("lane ", lane, " from ", from);
    if (bench.traits.relative) {
      const Result alone = bench.run(bench.tokens.slice(0, lane, lane + 1).slice(1, from, to));
      EXPECT_LE(apart(out.out[lane].slice(0, from, to), alone.out[0]), kBound) << what;
    }
    // Positions count on, but nothing else comes over from the documents before.
    Tensor changed = bench.tokens.clone();
    changed[lane].slice(0, 0, from).add_(5).remainder_(17);
    const Result other = bench.run(changed, nullptr, Form::automatic, facts);
    EXPECT_LE(apart(other.out[lane].slice(0, from, to), out.out[lane].slice(0, from, to)), kBound) << what;
  }
  if (!bench.traits.streams) return;
  const auto gradients = bench.gradients(out);
  for (const auto& cuts : std::vector<std::vector<int64_t>>{{4, 12}, {6, 12}, {7, 9, 12}, single_steps(12)}) {
    const Result pieces = bench.pieces(cuts, Form::automatic, facts);
    const std::string what = ::testing::PrintToString(cuts);
    EXPECT_LE(apart(pieces.out, out.out), kBound) << what;
    expect_same_gradients(bench.gradients(pieces), gradients, kBound, what);
  }
}

TEST_P(Alone, AShiftOfAllPositionsMovesNothingWhereRelative) {
  const Bench bench(GetParam().recipe, 12);
  if (!bench.traits.streams) GTEST_SKIP() << bench.traits.why_not;
  const at::NoGradGuard guard;
  const Tensor plain = bench.run(bench.tokens).out;
  State state = bench.model->start(2);
  state.tensors.at("seen").add_(bench.traits.context > 0 ? 7 : 43);  // no multiple of a segment
  const Tensor shifted = bench.run(bench.tokens, &state).out;
  if (bench.traits.relative) {
    EXPECT_LE(apart(shifted, plain), 1e-9);
  } else {
    EXPECT_GT(apart(shifted, plain), 1e-9) << "nothing moved: the member is relative and does not say so";
  }
}

TEST_P(Alone, RunsRepeatBitForBit) {
  const Bench bench(GetParam().recipe, 12, 2, at::kFloat, 0.3);
  const Tensor once = bench.model->score({bench.tokens, {}}),
               again = bench.model->score({bench.tokens, {}}, nullptr, 99);
  EXPECT_TRUE(once.equal(again)) << "evaluation draws nothing";
  bench.model->train();
  const Tensor first = bench.run(bench.tokens, nullptr, Form::automatic, {}, 5).out;
  at::rand({100});  // the global generator has no say
  const Tensor second = bench.run(bench.tokens, nullptr, Form::automatic, {}, 5).out;
  const Tensor other = bench.run(bench.tokens, nullptr, Form::automatic, {}, 6).out;
  EXPECT_TRUE(first.equal(second)) << "the pass's seed is all that counts";
  EXPECT_FALSE(first.equal(other)) << "dropout must depend on the seed";
}

INSTANTIATE_TEST_SUITE_P(Recipes, Alone, ::testing::ValuesIn(members()), name_of);

}  // namespace
}  // namespace kinfolk::laws
