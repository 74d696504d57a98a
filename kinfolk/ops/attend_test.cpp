#include "kinfolk/ops/attend.h"

#include "kinfolk/core/errors.h"
#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

constexpr double kDoubleBound = 1e-12, kFloatBound = 1e-5;

TEST(Attend, OddLengthsAndTails) {
  at::manual_seed(1);
  for (const int64_t length : {1, 2, 31, 33, 64, 65, 127, 129, 257})
    for (const char* pattern : {"causal", "full", "causal & window(7)", "window(70)"}) {
      Problem p;
      p.length = length, p.pattern = pattern, p.batch = 1, p.heads = 2, p.groups = 1, p.width = 5;
      p.make();
      expect_equal_everywhere(p, kDoubleBound, text(pattern, " at ", length));
    }
}

TEST(Attend, FloatAndTileSizes) {
  at::manual_seed(2);
  for (const int64_t tile : {3, 16, 64, 128}) {
    Problem p;
    p.length = 129, p.pattern = "causal & window(40)", p.type = at::kFloat, p.batch = 1;
    p.make();
    p.plan.query_tile = tile, p.plan.key_tile = tile + 5;
    EXPECT_TRUE(why_not_fused(p.q, p.keys, (p.run(false), p.plan)).empty());
    // The whole matrix in float is no better a judge than what it judges: twice the bound for gradients is in the test.
    expect_equal_everywhere(p, kFloatBound, text("tile ", tile));
  }
}

TEST(Attend, QueriesBehindACache) {
  at::manual_seed(3);
  for (const int64_t length : {1, 5, 40}) {
    Problem p;
    p.length = length, p.pattern = "causal & window(50)";
    p.make(90);
    expect_equal_everywhere(p, kDoubleBound, text(length, " queries"));
    p.pattern = "causal";
    expect_equal_everywhere(p, kDoubleBound, text(length, " queries, causal"));
  }
}

TEST(Attend, GapsOfInvalidTokens) {
  at::manual_seed(4);
  for (const int64_t length : {2, 33, 130}) {
    Problem p;
    p.length = length, p.pattern = "causal & window(20)";
    p.make();
    p.gaps(static_cast<uint64_t>(length));
    expect_equal_everywhere(p, kDoubleBound, text("gaps at ", length));
  }
}

TEST(Attend, DocumentsAndLimits) {
  at::manual_seed(5);
  Problem p;
  p.length = 65, p.pattern = "causal";
  p.make();
  p.q_document = at::randint(0, 8, {2, 65}, at::kLong).eq(0).cumsum(1);
  p.keys[0].document = p.q_document;
  expect_equal_everywhere(p, kDoubleBound, "documents");
  p.keys[0].from = (p.q_at - at::randint(0, 30, {2, 65}, at::kLong));
  expect_equal_everywhere(p, kDoubleBound, "documents and from");
  p.keys[0].until = at::randint(0, 66, {2, 65}, at::kLong);
  expect_equal_everywhere(p, kDoubleBound, "documents, from and until");
  p.q_document = p.keys[0].document = Tensor();
  p.pattern = "full";
  expect_equal_everywhere(p, kDoubleBound, "from and until");
}

TEST(Attend, TwoSetsOfKeys) {
  at::manual_seed(6);
  Problem p;
  p.length = 40, p.pattern = "causal & window(60)";
  p.make();
  p.q_at = (at::arange(40, at::kLong) + 70).expand({2, 40});
  p.keys[0].at = p.q_at;
  p.add_keys(at::arange(70, at::kLong).expand({2, 70}));
  expect_equal_everywhere(p, kDoubleBound, "cache and call");
  p.gaps(3);
  p.add_keys(at::full({2, 9}, -1, at::kLong));
  expect_equal_everywhere(p, kDoubleBound, "gaps and a set without a key");
}

TEST(Attend, TwoBandsOfDistance) {
  at::manual_seed(7);
  Problem p;
  p.length = 65, p.pattern = "causal";
  p.make();
  p.split(20);
  expect_equal_everywhere(p, kDoubleBound, "two bands");
  p.q[0].nearest = 3;  // pairs that no band covers are not seen
  expect_equal_everywhere(p, kDoubleBound, "two bands with a hole");
  p.gaps(5);
  expect_equal_everywhere(p, kDoubleBound, "two bands with gaps");
}

TEST(Attend, OneLimitedBand) {
  at::manual_seed(8);
  Problem p;
  p.length = 65, p.pattern = "causal";
  p.make();
  p.q[0].nearest = 2, p.q[0].farthest = 30, p.q[0].scale = 0.7;
  expect_equal_everywhere(p, kDoubleBound, "one band");
}

TEST(Attend, ConstantTableByDistance) {
  at::manual_seed(9);
  for (const char* pattern : {"causal", "full", "causal & window(30)"}) {
    Problem p;
    p.length = 65, p.pattern = pattern;
    p.make();
    const Tensor slopes = at::rand({4}, at::kDouble);
    SlopeStep slope(slopes), twice(slopes * 0.5);
    p.score = {&slope, &twice};
    const auto change = [&](double s, int64_t, int64_t h, int64_t, int64_t i, int64_t j) {
      return s - 1.5 * slopes[h].item<double>() * std::abs(static_cast<double>(i - j));
    };
    expect_equal_everywhere(p, kDoubleBound, pattern, change);
    p.run(false);
    EXPECT_TRUE(why_not_fused(p.q, p.keys, p.plan).empty());
    p.gaps(9);
    expect_equal_everywhere(p, kDoubleBound, text(pattern, " with gaps"), change);
  }
}

TEST(Attend, LearnedStepWithQ) {
  at::manual_seed(10);
  Problem p;
  p.length = 50, p.pattern = "causal & window(33)";
  p.make();
  p.gaps(2, 0.1);
  LearnedStep step(p.draw({4, 50}), p.draw({8}), 0);
  p.score = {&step};
  p.more = {step.table, step.w};
  const auto change = [&](double s, int64_t b, int64_t h, int64_t l, int64_t i, int64_t j) {
    return s * std::tanh(step.table[h][i - j].item<double>()) + p.q_raw[b][h][l].dot(step.w).item<double>() / 4;
  };
  expect_equal_everywhere(p, kDoubleBound, "learned", change);
  p.split(10);
  expect_equal_everywhere(p, kDoubleBound, "learned, two bands", change);
}

TEST(Attend, GradientsAreThoseOfFiniteDifferences) {
  at::manual_seed(11);
  Problem p;
  p.batch = 1, p.heads = 2, p.groups = 1, p.length = 5, p.width = 3;
  p.make(7);
  p.add_keys(at::arange(4, at::kLong).expand({1, 4}));
  p.split(3);
  p.gaps(4, 0.1);
  LearnedStep step(p.draw({2, 12}), p.draw({3}), 0);
  p.score = {&step};
  p.more = {step.table, step.w};
  p.plan.query_tile = 2, p.plan.key_tile = 3;
  const Tensor d_out = p.draw({1, 2, 5, 3}), d_lse = p.draw({1, 2, 5});
  const auto value = [&] {
    const Read read = p.run(true);
    return (read.out * d_out).sum() + (read.lse.masked_fill(read.lse.detach().isinf(), 0) * d_lse).sum();
  };
  for (auto& leaf : p.leaves()) {
    leaf.requires_grad_(true);
    const Tensor got = torch::autograd::grad({value()}, {leaf}, {}, std::nullopt, false, true)[0];
    leaf.requires_grad_(false);
    const Tensor flat = leaf.view({-1});
    for (int64_t n = 0; n < flat.numel(); ++n) {
      const double held = flat[n].item<double>(), step_size = 1e-6;
      flat[n] = held + step_size;
      const double up = value().item<double>();
      flat[n] = held - step_size;
      const double down = value().item<double>();
      flat[n] = held;
      EXPECT_NEAR(got.view({-1})[n].item<double>(), (up - down) / (2 * step_size), 2e-8);
    }
  }
}

TEST(Attend, AnyLayoutOfTensors) {
  at::manual_seed(12);
  Problem p;
  p.length = 33, p.groups = 4, p.type = at::kFloat;
  p.make();
  const auto compare = [&](const std::string& what) {
    for (const bool plain : {true, false}) {
      const Read got = p.run(plain);
      EXPECT_LE(difference(got.out, p.definition().out), kFloatBound) << what << plain;
    }
  };
  const Tensor wide = at::randn({2, 33, 4, 16});
  p.q[0].q = wide.transpose(1, 2).slice(3, 0, 16, 2);  // heads transposed, every second column
  compare("every second column");
  p.bands[0][0].k = at::randn({1, 1, 33, 8}).expand({2, 4, 33, 8});
  compare("expanded keys");
  p.keys[0].v = at::randn({2, 4, 8, 33}).transpose(2, 3);
  compare("transposed values");
  p.bands[0][0].k = at::randn({2, 4, 66, 8}).slice(2, 1, 66, 2).flip(0);
  compare("every second row");
  p.keys[0].at = at::arange(66, at::kLong).slice(0, 0, 66, 2).expand({2, 33});  // strided positions
  p.q_at = at::stack({at::arange(33, at::kLong), at::arange(33, at::kLong) * 2}, 1).select(1, 1).expand({2, 33});
  compare("strided positions");
}

TEST(Attend, EmptyRowsDoNotPoisonOthers) {
  at::manual_seed(13);
  for (const bool plain : {true, false}) {
    Problem p;
    p.batch = 1, p.length = 4;
    p.make();
    p.keys[0].from = at::zeros({1, 4}, at::kLong);
    p.keys[0].from[0][2] = 100;  // row 2 sees nothing
    for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
    const Read read = p.run(plain);
    EXPECT_EQ(read.out.select(2, 2).abs().max().item<double>(), 0);
    EXPECT_EQ(read.lse.select(2, 2).max().item<double>(), -INFINITY);
    const auto got = torch::autograd::grad({read.out.slice(2, 0, 2).sum()}, p.leaves());
    const Read two = join(p.run(plain), p.run(plain));
    const auto joined = torch::autograd::grad({two.out.sum() + two.lse.exp().sum()}, p.leaves());
    Problem without = p;
    without.keys[0].from = Tensor();
    const auto want = torch::autograd::grad({without.run(plain).out.slice(2, 0, 2).sum()}, p.leaves());
    for (size_t n = 0; n < got.size(); ++n) {
      EXPECT_LE(difference(got[n], want[n]), 1e-14) << n;
      EXPECT_TRUE(joined[n].isfinite().all().item<bool>()) << n;
    }
  }
}

TEST(Attend, NothingToSeeAtAll) {
  Problem p;
  p.make();
  p.keys[0].at = at::full({2, 33}, -1, at::kLong);
  SlopeStep slope(at::ones({4}, at::kDouble));
  p.score = {&slope};
  for (const bool plain : {true, false}) {
    for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
    const Read read = p.run(plain);
    EXPECT_EQ(read.out.abs().max().item<double>(), 0);
    EXPECT_TRUE(read.lse.eq(-INFINITY).all().item<bool>());
    for (const auto& g : torch::autograd::grad({read.out.sum()}, {p.q[0].q, p.keys[0].v}))
      EXPECT_EQ(g.abs().max().item<double>(), 0);
  }
}

TEST(Attend, LongGapsBeforeTheFirstKey) {  // more masked keys in front than the kernel takes at once
  at::manual_seed(14);
  Problem p;
  p.length = 20, p.pattern = "causal", p.type = at::kFloat;
  p.make(1400);
  p.keys[0].at = p.keys[0].at.contiguous();
  p.keys[0].at.slice(1, 0, 1300).fill_(-1);
  expect_equal_everywhere(p, kFloatBound, "padding");
}

TEST(Attend, AnyCombination) {
  std::mt19937_64 random(99);
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  const auto chance = [&](int64_t percent) { return pick(0, 99) < percent; };
  for (int round = 0; round < 120; ++round) {
    at::manual_seed(1000 + round);
    Problem p;
    p.batch = pick(1, 3), p.groups = pick(1, 3), p.heads = p.groups * pick(1, 2), p.length = pick(1, 40),
    p.width = pick(1, 9);
    p.pattern = std::vector<std::string>{"causal",
                                         "full",
                                         "window(9)",
                                         "causal & window(5)",
                                         "causal | window(3)",
                                         "causal & window(70)"}[static_cast<size_t>(pick(0, 5))];
    p.make(p.length + pick(0, 90));
    if (chance(40)) {
      const int64_t n = pick(0, 70);
      p.add_keys((at::randperm(n, at::kLong) + pick(0, 30)).expand({p.batch, n}));  // in any order, as in a ring
    }
    if (chance(40)) p.gaps(random(), 0.05 * static_cast<double>(pick(1, 19)));
    if (chance(30)) {
      p.q_document = at::randint(0, 3, {p.batch, p.length}, at::kLong);
      for (auto& set : p.keys)
        if (chance(80)) set.document = at::randint(0, 3, set.at.sizes(), at::kLong);
    }
    for (auto& set : p.keys) {
      if (chance(25)) set.from = at::randint(-3, 60, {p.batch, p.length}, at::kLong);
      if (chance(25)) set.until = at::randint(0, 130, {p.batch, p.length}, at::kLong);
    }
    if (chance(30)) p.split(pick(-5, 40));
    if (chance(20)) p.q[0].nearest = std::min<int64_t>(pick(-3, 6), p.q[0].farthest - 1);
    p.plan.query_tile = pick(1, 20), p.plan.key_tile = pick(1, 30);
    const Tensor slopes = at::rand({p.heads}, at::kDouble), table = p.draw({p.heads, 400}), w = p.draw({p.width});
    SlopeStep slope(slopes);
    LearnedStep learned(table, w, -200);
    const bool sloped = chance(40), learns = chance(30);
    if (sloped) p.score.push_back(&slope);
    if (learns) p.score.push_back(&learned), p.more = {table, w};
    expect_equal_everywhere(p, kDoubleBound, text("round ", round, ", ", p.pattern),
                            [&](double s, int64_t b, int64_t h, int64_t l, int64_t i, int64_t j) {
                              if (sloped) s -= slopes[h].item<double>() * std::abs(static_cast<double>(i - j));
                              if (learns) {
                                s = s * std::tanh(table[h][i - j + 200].item<double>()) +
                                    p.q_raw[b][h][l].dot(w).item<double>() / 4;
                              }
                              return s;
                            });
  }
}

TEST(Attend, TilesThatCannotMeetAreSkipped) {
  struct Counting : SlopeStep {
    using SlopeStep::SlopeStep;
    Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
      ++calls;
      EXPECT_GE(tile.distance.min().item<int64_t>(), tile.nearest);
      EXPECT_LE(tile.distance.max().item<int64_t>(), tile.farthest);
      return SlopeStep::apply(tile, prepared);
    }
    int calls = 0;
  };
  const auto calls = [](const std::function<void(Problem&)>& change) {
    Problem p;
    p.length = 1024, p.pattern = "causal & window(65)";
    p.make();
    p.plan.query_tile = p.plan.key_tile = 64;
    Counting step(at::ones({4}));
    p.score = {&step};
    change(p);
    p.run(true);
    return step.calls;
  };
  EXPECT_EQ(calls([](Problem&) {}), 31);  // the own block and the one before, 16 times, the first alone
  EXPECT_EQ(calls([](Problem& p) {
              p.q_document = p.keys[0].document = at::floor_divide(p.q_at, at::scalar_tensor(64, at::kLong));
            }),
            16);
  EXPECT_EQ(calls([](Problem& p) { p.keys[0].until = p.q_at.sub(p.q_at % 64); }), 15);
  EXPECT_EQ(calls([](Problem& p) { p.keys[0].from = p.q_at.sub(p.q_at % 64); }), 16);
  EXPECT_EQ(calls([](Problem& p) { p.q[0].farthest = 1; }), 16);
  EXPECT_EQ(calls([](Problem& p) { p.keys[0].at = at::full({2, 1024}, -1, at::kLong); }), 0);
}

TEST(Attend, SecondDerivativesAreRefused) {
  for (const bool plain : {true, false}) {
    Problem p;
    p.make();
    p.q[0].q.requires_grad_(true);
    const Read read = p.run(plain);
    EXPECT_THROW(torch::autograd::grad({read.out.sum()}, {p.q[0].q}, {}, true, true), Error);
  }
}

TEST(Attend, GraphMayBeKept) {
  for (const bool plain : {true, false}) {
    Problem p;
    p.make();
    p.q[0].q.requires_grad_(true);
    const Tensor sum = p.run(plain).out.sum();
    const Tensor one = torch::autograd::grad({sum}, {p.q[0].q}, {}, true)[0];
    EXPECT_EQ(difference(torch::autograd::grad({sum}, {p.q[0].q})[0], one), 0);
    EXPECT_THROW(torch::autograd::grad({sum}, {p.q[0].q}), c10::Error);
  }
}

TEST(Attend, SaysWhatIsWrong) {
  Problem p;
  p.make();
  p.run(false);
  const auto said = [&](Problem wrong) {
    try {
      wrong.run(false);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  Problem wrong = p;
  wrong.q_at = at::zeros({2, 5}, at::kLong);
  EXPECT_NE(said(wrong).find("[attend] expected q_at to be int64 [2, 33]; found"), std::string::npos) << said(wrong);
  wrong = p;
  wrong.keys[0].v = at::zeros({2, 3, 33, 8}, at::kDouble);
  EXPECT_NE(said(wrong).find("divisor of 4"), std::string::npos) << said(wrong);
  wrong = p;
  wrong.bands[0][0].k = at::zeros({2, 2, 32, 8}, at::kDouble);
  EXPECT_NE(said(wrong).find("k of set 0"), std::string::npos) << said(wrong);
  p.plan.dropout = 0.1;
  p.split(3);
  EXPECT_EQ(why_not_fused(p.q, p.keys, p.plan).size(), 2U);
  LearnedStep step(at::zeros({4, 50}), at::zeros({8}), 0);
  p.plan.score = {&step};
  EXPECT_EQ(why_not_fused(p.q, p.keys, p.plan).size(), 3U);
}

}  // namespace
}  // namespace kinfolk
