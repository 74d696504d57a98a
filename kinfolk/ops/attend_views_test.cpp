// Patterns that are no interval of distances: view by view and in tiles, against the whole matrix.
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/pattern/draw.h"
#include "kinfolk/pattern/views.h"
#include "tests/support/attend_problem.h"
#include "tests/support/patterns.h"

namespace kinfolk {
namespace {

using By = AttendPlan::By;

/// out, lse and gradients both ways.
void expect_dense(Problem& p, double tolerance, const std::string& what) {
  const auto leaves = p.leaves();
  for (auto& leaf : leaves) leaf.requires_grad_(true);
  const Read want = p.dense();
  const Tensor d_out = at::randn_like(want.out), d_lse = at::randn_like(want.lse);
  const auto gradients = [&](const Read& read) {
    const Tensor lse = read.lse.masked_fill(read.lse.detach().isinf(), 0);
    const Tensor sum = (read.out * d_out.to(read.out.scalar_type())).sum() + (lse * d_lse.to(lse.scalar_type())).sum();
    return torch::autograd::grad({sum}, leaves, {}, std::nullopt, false, true);
  };
  const auto want_gradients = gradients(want);
  for (const By by : {By::views, By::tiles, By::automatic})
    for (const bool plain : {true, false}) {
      const std::string where = text(what,
                                     by == By::views   ? " by views"
                                     : by == By::tiles ? " in tiles"
                                                       : "",
                                     plain ? " (plain)" : "");
      p.plan.by = by;
      const Read got = p.run(plain);
      EXPECT_LE(difference(got.out, want.out), tolerance) << where;
      EXPECT_LE(difference(got.lse, want.lse), tolerance) << where;
      const auto got_gradients = gradients(got);
      for (size_t n = 0; n < leaves.size(); ++n) {
        const auto defined = [&](const Tensor& x) { return x.defined() ? x : at::zeros_like(leaves[n]); };
        EXPECT_LE(difference(defined(got_gradients[n]), defined(want_gradients[n])), 4 * tolerance)
            << where << ", gradient " << n;
      }
    }
  for (auto& leaf : leaves) leaf.requires_grad_(false);
}

const std::vector<std::string>& patterns() {
  static const std::vector<std::string> all = {
      "causal & (window(6) | stride(5))",
      "causal & (block_local(7, 0) | fixed(7, 2))",
      "causal & block_local(5, 3)",
      "causal & dilated(4, 3)",
      "dilated(3, 2)",
      "causal & local2d(3, 5, 2, 3, 1, 1, block)",
      "causal & blocks(4, 16, -1)",
      "blocks(3, 20, [1, 2, 0])",
      "causal & (window(4) | global([0, 9]))",
      "window(4) | global([0, 9])",
      "causal & (block_window(3, 1) | columns(3) | random(3, 2, 5))",
      "block_window(3, 1) | global([0:3]) | random(3, 2, 5, 33)",
      "prefix(6) | causal",
      "rows([3, 4])",
      "causal & columns([20])",
  };
  return all;
}

TEST(AttendViews, EqualTheWholeMatrixAtEveryLength) {
  at::manual_seed(1);
  for (const auto& words : patterns())
    for (const int64_t length : {1, 2, 16, 33}) {
      Problem p;
      p.pattern = words, p.length = length;
      p.make();
      expect_dense(p, 1e-11, text(words, " at ", length));
    }
}

TEST(AttendViews, RandomPatternsInRandomHeads) {
  at::manual_seed(11);
  std::mt19937 draw(12);
  for (int round = 0; round < 40; ++round) {
    Problem p;
    p.groups = std::vector<int64_t>{1, 2, 4}[draw() % 3];
    for (unsigned n = 1 << draw() % 3; n > 0; --n)
      p.per_head.push_back(random_pattern(draw, static_cast<int>(draw() % 3)));
    p.length = 1 + static_cast<int64_t>(draw() % 40);
    p.make(p.length + static_cast<int64_t>(draw() % 9));
    if (draw() % 2) p.gaps(draw());
    std::string words;
    for (const auto& one : p.per_head) words += one + "; ";
    expect_dense(p, 1e-11, text(words, "at ", p.length));
  }
}

// `draw` shows what the op does: with the unit vectors as values, a read has an entry above zero for each key seen.
TEST(AttendViews, DrawnAsTheOpSees) {
  for (const auto& words : patterns())
    for (const By by : {By::views, By::tiles}) {
      Problem p;
      p.pattern = words, p.length = 33, p.batch = 1, p.heads = p.groups = 1, p.width = 4;
      p.make();
      p.keys[0].v = at::eye(33, at::kDouble).view({1, 1, 33, 33});
      p.plan.by = by;
      EXPECT_TRUE(p.run(false).out[0][0].gt(0).equal(draw_matrix(*parse_pattern(words), 33))) << words;
    }
}

TEST(AttendViews, FewerQueriesThanKeys) {
  at::manual_seed(2);
  for (const auto& words : patterns())
    for (const int64_t length : {1, 5}) {
      Problem p;
      p.pattern = words, p.length = length, p.type = at::kFloat;
      p.make(37);
      expect_dense(p, 2e-5, text(words, " at ", length));
    }
}

TEST(AttendViews, InvalidTokensDocumentsLimitsAndSets) {
  at::manual_seed(3);
  for (const auto& words : patterns()) {
    Problem p;
    p.pattern = words, p.length = 21;
    p.make();
    p.gaps(5);
    expect_dense(p, 1e-11, words + " with gaps");
    // Two sets, one of which ends where the other begins; documents; limits.
    Problem two;
    two.pattern = words, two.length = 14;
    two.make(30);
    const Tensor whole = two.keys[0].at;
    two.keys.clear(), two.bands.clear();
    two.add_keys(whole.narrow(1, 0, 13)), two.add_keys(whole.narrow(1, 13, 17));
    two.q_document = two.q_at.ge(22).to(at::kLong);
    for (auto& set : two.keys) set.document = set.at.ge(22).to(at::kLong);
    two.keys[1].from = two.q_at - 9, two.keys[0].until = two.q_at - 12;
    expect_dense(two, 1e-11, words + " with two sets");
  }
}

TEST(AttendViews, BandsAndScoreSteps) {
  at::manual_seed(4);
  for (const auto& words : patterns()) {
    Problem p;
    p.pattern = words, p.length = 27;
    p.make();
    p.split(7);
    p.q.push_back({p.draw({p.batch, p.heads, p.length, p.width}), 0.3, INT64_MIN, 0});
    p.q[0].nearest = 0;
    p.bands[0].push_back({p.draw(p.bands[0][0].k.sizes())});
    SlopeStep slope(at::linspace(0.1, 0.7, p.heads, at::kDouble));
    p.score = {&slope};
    expect_dense(p, 1e-11, words + " in bands");
    Problem learned;
    learned.pattern = words, learned.length = 27;
    learned.make();
    learned.more = {at::randn({learned.heads, 81}, at::kDouble), at::randn({learned.width}, at::kDouble)};
    LearnedStep step(learned.more[0], learned.more[1], -40);
    learned.score = {&step};
    expect_dense(learned, 1e-11, words + " with a step that learns");
  }
}

TEST(AttendViews, HeadsOfTheirOwn) {
  at::manual_seed(5);
  const std::vector<std::vector<std::string>> lists = {
      {"causal & window(5)", "causal & stride(4)"},
      {"causal & block_local(5, 0)", "causal & fixed(5, 2)", "causal & fixed(5, 2, 1)", "causal & window(2)"},
      {"blocks(4, 20, 0)", "blocks(4, 20, 1)"},
      {"causal", "causal"},
      {"causal & random(3, 2, 1)", "causal & random(3, 2, 2)", "window(3)", "window(3)"}};
  for (const auto& list : lists)
    for (const int64_t groups : {1, 2, 4}) {
      Problem p;
      p.per_head = list, p.groups = groups, p.length = 23;
      p.make();
      expect_dense(p, 1e-11, text(list[0], ", ... in groups: ", groups));
      p.more = {at::randn({p.heads, 81}, at::kDouble), at::randn({p.width}, at::kDouble)};
      LearnedStep step(p.more[0], p.more[1], -40);
      p.score = {&step};
      p.plan.owned.clear();
      expect_dense(p, 1e-11, text(list[0], ", ... with a step, groups ", groups));
    }
  Problem p;
  p.per_head = {"causal", "full", "window(2)"};
  EXPECT_THROW(p.make().run(false), Error);
}

TEST(AttendViews, FactsDifferBetweenLanes) {
  at::manual_seed(6);
  Problem p;
  p.pattern = "prefix(@prefix) | causal & (window(3) | global(@global))";
  p.facts = {{"prefix", at::tensor({9, 0}, at::kLong)}, {"global", at::tensor({2, 11, 4, -1}, at::kLong).view({2, 2})}};
  p.make();
  expect_dense(p, 1e-11, p.pattern);
  p.gaps(3);
  expect_dense(p, 1e-11, p.pattern + " with gaps");
}

TEST(AttendViews, HalfTypesAreSummedInFloat) {
  at::manual_seed(7);
  Problem p;
  p.pattern = "causal & (window(4) | random(2, 3, 5))", p.type = at::kFloat, p.length = 40;
  p.make();
  p.q[0].q = p.q[0].q.to(at::kBFloat16);
  p.keys[0].v = p.keys[0].v.to(at::kBFloat16), p.bands[0][0].k = p.bands[0][0].k.to(at::kBFloat16);
  p.plan.by = By::views;
  const Read got = p.run(false);
  EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.lse.scalar_type(), at::kFloat);
  p.q[0].q = p.q[0].q.to(at::kFloat);
  p.keys[0].v = p.keys[0].v.to(at::kFloat), p.bands[0][0].k = p.bands[0][0].k.to(at::kFloat);
  const Read want = p.run(false);
  EXPECT_TRUE(got.out.equal(want.out.to(at::kBFloat16)));
}

// Dropout draws another mask in each view, and is unbiased.
TEST(AttendViews, DropoutKeepsTheMean) {
  at::manual_seed(8);
  Problem p;
  p.pattern = "causal & (window(3) | stride(4))", p.length = 12, p.batch = 1;
  p.make();
  const Tensor want = p.run(false).out;
  p.plan.dropout = 0.4;
  for (const By by : {By::views, By::tiles}) {
    p.plan.by = by;
    Tensor sum = at::zeros_like(want);
    for (uint64_t seed = 0; seed < 1500; ++seed) {
      p.plan.seed = seed;
      sum += p.run(false).out;
    }
    EXPECT_LE(difference(sum / 1500, want), 0.12);
    const Tensor once = p.run(false).out, again = p.run(false).out;
    EXPECT_TRUE(once.equal(again));
  }
}

// One pattern at many lengths, long and short in turn, is the same as a fresh one (state between batches).
TEST(AttendViews, APatternServesEveryLength) {
  at::manual_seed(9);
  Problem p;
  p.pattern = "causal & (block_window(8, 1) | columns(8) | random(8, 2, 3))", p.type = at::kFloat;
  const auto pattern = parse_pattern(p.pattern);
  std::map<int64_t, Tensor> first;
  for (const int64_t length : {4096, 100, 200, 100, 4096, 63, 65}) {
    at::manual_seed(length);
    Problem one;
    one.type = at::kFloat, one.batch = 1, one.heads = one.groups = 1, one.length = length;
    one.make();
    one.plan.query_tile = 128, one.plan.key_tile = 512;
    one.plan.pattern = pattern;
    const auto leaf = one.q[0].q.requires_grad_(true);
    const Tensor out = attend(one.q, one.q_raw, one.q_at, {}, one.keys, one.bands, one.plan).out;
    const Tensor gradient = torch::autograd::grad({out.square().sum()}, {leaf})[0];
    EXPECT_TRUE(gradient.isfinite().all().item<bool>());
    const Tensor both = at::cat({out.detach(), gradient}, 3);
    const auto known = first.try_emplace(length, both);
    EXPECT_TRUE(known.first->second.equal(both)) << length;
    if (length > 300) continue;
    one.pattern = p.pattern;
    EXPECT_LE(difference(out, one.dense().out), 2e-5) << length;
  }
}

// Growth with the length times what is seen: a square of bytes would be 10 GB.
TEST(AttendViews, MemoryGrowsWithWhatIsSeen) {
  for (const char* words :
       {"causal & (window(256) | stride(1024))", "causal & (block_window(64, 1) | random(64, 3, 1))",
        "causal & (window(256) | columns(16))"}) {
    Problem p;
    p.batch = 1, p.heads = p.groups = 1, p.length = 100000, p.width = 32, p.type = at::kFloat;
    p.pattern = words;
    p.make();
    p.plan.query_tile = 128, p.plan.key_tile = 512;
    for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
    reset_peak();
    const int64_t before = peak_resident_bytes();
    const Read read = p.run(false);
    torch::autograd::grad({read.out.sum()}, p.leaves());
    EXPECT_LT(peak_resident_bytes() - before, int64_t{1} << 30) << words;
  }
}

// Positions whose products exceed 32 bits.
TEST(AttendViews, LongSequences) {
  at::manual_seed(10);
  const int64_t length = 46500;
  Problem p;
  p.type = at::kFloat, p.batch = 1, p.heads = p.groups = 1, p.width = 16, p.length = length;
  p.pattern = "causal & (window(64) | stride(512))";
  p.make();
  p.plan.query_tile = 128, p.plan.key_tile = 512;
  const at::NoGradGuard guard;
  const Tensor out = p.run(false).out.slice(2, length - 200);
  p.q[0].q = p.q[0].q.slice(2, length - 200), p.q_raw = p.q_raw.slice(2, length - 200);
  p.q_at = p.q_at.slice(1, length - 200), p.length = 200;
  EXPECT_LE(difference(out, p.dense().out), 2e-5);
}

}  // namespace
}  // namespace kinfolk
