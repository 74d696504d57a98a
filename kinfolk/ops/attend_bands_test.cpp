// Several bands of distance: the float32 kernel and the plain path in double against the whole matrix; values and
// gradients.

#include "kinfolk/core/errors.h"
#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

/// Calls f on every tensor of the problem that may want a gradient.
template <class F>
void each_tensor(Problem& p, const F& f) {
  f(p.q_raw);
  for (auto& band : p.q) f(band.q);
  for (size_t s = 0; s < p.keys.size(); ++s) {
    f(p.keys[s].v);
    for (auto& band : p.bands[s])
      if (band.k.defined()) f(band.k);
  }
}

/// A far band at distances from `far` on, a near one, and one behind `back` at negative distances.
void split(Problem& p, int64_t far, int64_t back = INT64_MIN) {
  p.split(far);
  if (back == INT64_MIN) return;
  p.q[0].nearest = back;
  p.q.push_back({p.draw(p.q[0].q.sizes()), 0.3, INT64_MIN, back});
  for (auto& bands : p.bands) bands.push_back({p.draw(bands[0].k.sizes())});
}

struct Outcome {
  Read read;
  std::vector<Tensor> gradients;
};
void expect_same(const Outcome& got, const Outcome& want, double bound, const std::string& what) {
  EXPECT_LE(difference(got.read.out, want.read.out), bound) << what;
  EXPECT_LE(difference(got.read.lse, want.read.lse), bound) << what;
  for (size_t n = 0; n < want.gradients.size(); ++n) {
    EXPECT_LE(difference(got.gradients[n], want.gradients[n]), 2 * bound) << what << ", gradient " << n;
  }
}

/// p is in double; `type` that of the fused path.
void expect_definition(Problem p, const std::string& what, double bound = 1e-5, at::ScalarType type = at::kFloat) {
  each_tensor(p, [&](Tensor& x) { x = x.to(type).to(at::kDouble).requires_grad_(true); });
  Problem own = p;
  own.plan.query_tile = 128, own.plan.key_tile = 512;
  each_tensor(own, [&](Tensor& x) { x = x.detach().to(type).requires_grad_(true); });
  const Tensor d_out = p.draw({p.batch, p.heads, p.length, p.keys[0].v.size(3)}).to(type);
  const Tensor d_lse = p.draw({p.batch, p.heads, p.length}).to(type);
  const auto outcome = [&](Problem& problem, const Read& read) {
    const Tensor lse = read.lse.masked_fill(read.lse.detach().isinf(), 0);
    const Tensor sum = (read.out * d_out.to(read.out.scalar_type())).sum() + (lse * d_lse.to(lse.scalar_type())).sum();
    const auto leaves = problem.leaves();
    Outcome out{read, torch::autograd::grad({sum}, leaves, {}, std::nullopt, false, true)};
    for (size_t n = 0; n < leaves.size(); ++n)
      if (!out.gradients[n].defined()) out.gradients[n] = at::zeros_like(leaves[n]);
    return out;
  };
  const Outcome want = outcome(p, p.dense());
  const Read fused = own.run(false);
  EXPECT_TRUE(why_not_fused(own.q, own.keys, own.plan).empty()) << what;
  expect_same(outcome(own, fused), want, bound, what);
  expect_same(outcome(p, p.run(true)), want, 1e-11, what + ", plain");
  const at::NoGradGuard guard;
  EXPECT_EQ(difference(own.run(false).out, fused.out), 0) << what;
}

Problem make(int64_t batch, int64_t heads, int64_t groups, int64_t length, int64_t keys, int64_t width,
             const std::string& pattern) {
  Problem p;
  p.batch = batch, p.heads = heads, p.groups = groups, p.length = length, p.width = width, p.pattern = pattern;
  return p.make(keys);
}

TEST(AttendBands, LengthsAroundTiles) {
  at::manual_seed(1);
  for (const int64_t length : {0, 1, 2, 7, 25, 95, 96, 97, 128, 129, 193, 257})
    for (const int64_t border : {1, 2, 17, 96, 128, 200, 1000}) {
      Problem p = make(1, 2, 1, length, std::max<int64_t>(length, 1), 16, "causal");
      split(p, border);
      expect_definition(p, text("length ", length, ", border ", border));
    }
}

TEST(AttendBands, NoKeysAtAll) {
  Problem p = make(1, 2, 1, 3, 3, 16, "causal");
  p.type = at::kFloat;
  p.keys.clear(), p.bands.clear();
  p.add_keys(at::zeros({1, 0}, at::kLong));
  each_tensor(p, [](Tensor& x) { x = x.to(at::kFloat); });
  split(p, 2);
  const Read read = p.run(false);
  EXPECT_TRUE(read.out.eq(0).all().item<bool>() && read.lse.eq(-INFINITY).all().item<bool>());
}

TEST(AttendBands, ThreeBandsOfBothSides) {
  at::manual_seed(2);
  for (const char* pattern : {"full", "causal", "causal & window(100)", "causal | window(30)"}) {
    Problem p = make(2, 4, 2, 150, 170, 20, pattern);
    split(p, 40, -12);
    expect_definition(p, pattern);
    p.gaps(3);
    expect_definition(p, text(pattern, " with gaps"));
  }
}

TEST(AttendBands, StepsOverACache) {
  at::manual_seed(3);
  for (const int64_t length : {1, 3, 6, 7})
    for (const int64_t border : {5, 64, 150, 400}) {
      Problem p = make(2, 8, 2, length, 300, 32, "causal");
      split(p, border);
      expect_definition(p, text(length, " queries, border ", border));
      p.gaps(static_cast<uint64_t>(length));
      expect_definition(p, text(length, " queries with gaps, border ", border));
    }
}

TEST(AttendBands, DistancesThatNoBandHasAreNotSeen) {
  at::manual_seed(4);
  Problem p = make(1, 2, 2, 140, 140, 8, "causal");
  split(p, 40);
  p.q[0].nearest = 3, p.q[0].farthest = 30, p.q[1].farthest = 90;
  expect_definition(p, "gaps between bands");
}

TEST(AttendBands, SetsWithoutKeysOfABand) {
  at::manual_seed(5);
  for (const int64_t length : {1, 5, 140}) {
    Problem p = make(2, 4, 2, length, 200, 16, "causal");
    p.add_keys(p.keys[0].at.narrow(1, 150, 50));
    split(p, 30);
    p.bands[0][0].k = Tensor(), p.bands[1][1].k = Tensor();  // all far keys, the newest near ones
    expect_definition(p, text("split sets of ", length));
  }
}

TEST(AttendBands, TablesGoOnAcrossTheBorder) {
  at::manual_seed(6);
  Problem p = make(2, 4, 2, 150, 180, 16, "causal");
  split(p, 50);
  SlopeStep slopes(at::tensor({0.1, 0.02, 0.5, 0.0}, at::kDouble));
  p.score = {&slopes};
  expect_definition(p, "slopes");
}

TEST(AttendBands, AnyCombination) {
  std::mt19937_64 random(7);
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  const auto chance = [&](int64_t percent) { return pick(0, 99) < percent; };
  for (int round = 0; round < 80; ++round) {
    at::manual_seed(100 + round);
    const int64_t groups = pick(1, 2), length = pick(1, 220);
    Problem p =
        make(pick(1, 3), groups * pick(1, 2), groups, length, length + pick(0, 200), pick(4, 40),
             std::vector<std::string>{"causal", "full", "causal & window(60)", "causal | window(3)"}[pick(0, 3)]);
    if (chance(50)) {
      const int64_t n = pick(0, 150), first = pick(0, 40);
      Tensor at = at::arange(n, at::kLong) + first;
      if (chance(30)) at = at.roll(pick(0, 100));
      if (chance(20)) at = at::randperm(n, at::kLong) + first;
      p.add_keys(at.expand({p.batch, n}));
    }
    split(p, pick(1, 150), chance(50) ? pick(-100, 0) : INT64_MIN);
    if (chance(40)) p.gaps(random(), 0.05 * static_cast<double>(pick(1, 19)));
    if (chance(30)) {
      p.q_document = at::randint(0, 40, {p.batch, p.length}, at::kLong).eq(0).cumsum(1);
      for (auto& set : p.keys)
        if (chance(80)) set.document = at::randint(0, 40, set.at.sizes(), at::kLong).eq(0).cumsum(1);
    }
    for (auto& set : p.keys) {
      if (chance(25)) set.from = at::randint(-3, 200, {p.batch, p.length}, at::kLong);
      if (chance(25)) set.until = at::randint(0, 400, {p.batch, p.length}, at::kLong);
    }
    expect_definition(p, text("round ", round, ", ", p.pattern));
  }
}

TEST(AttendBands, Bfloat16ComputesInFloat) {
  at::manual_seed(9);
  Problem p = make(2, 4, 2, 120, 150, 16, "causal");
  split(p, 30);
  expect_definition(p, "bfloat16", 0.005, at::kBFloat16);
}

TEST(AttendBands, DoubleSaysWhyItIsNotFused) {
  Problem p = make(1, 1, 1, 3, 3, 4, "causal");
  split(p, 2);
  p.plan.pattern = parse_pattern("causal");
  const auto why = why_not_fused(p.q, p.keys, p.plan);
  ASSERT_EQ(why.size(), 1u);
  EXPECT_NE(why[0].find("2 bands"), std::string::npos) << why[0];
}

}  // namespace
}  // namespace kinfolk
