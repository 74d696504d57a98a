// The float32 kernel against the plain path in double: values and gradients, at every instruction set.
#include <ATen/Parallel.h>

#include "kinfolk/core/errors.h"
#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

constexpr double kBound = 1e-5;

/// Adds table_h[i - j], which learns.
struct TableStep : ScoreStep {
  TableStep(Tensor table, int64_t lowest) : table(std::move(table)), lowest(lowest) {}
  std::vector<Tensor> prepare(const Tensor&, int64_t, int64_t) override { return {table}; }
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
    const Tensor index = (tile.distance - lowest).expand({tile.scores.size(0), 1, -1, -1});
    const Tensor added = prepared[0].index_select(1, index.reshape({-1}));  // [H or 1, B Lq Lk]
    return tile.scores + added.view({-1, index.size(0), index.size(2), index.size(3)}).transpose(0, 1);
  }
  std::optional<DistanceTable> by_distance(const Tensor&, int64_t, int64_t) override {
    return DistanceTable{table, lowest};
  }
  Tensor table;  ///< [H or 1, distances]
  int64_t lowest;
};

/// max(score, 0) f_h[i - j], or score f_h[i - j]; f learns.
struct FactorStep : ScoreStep {
  FactorStep(Tensor table, int64_t lowest, bool relu) : table(std::move(table)), lowest(lowest), relu(relu) {}
  std::vector<Tensor> prepare(const Tensor&, int64_t, int64_t) override { return {table}; }
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
    const Tensor index = (tile.distance - lowest).expand({tile.scores.size(0), 1, -1, -1});
    const Tensor read = prepared[0].index_select(1, index.reshape({-1}));  // [H or 1, B Lq Lk]
    return (relu ? tile.scores.relu() : tile.scores) *
           read.view({-1, index.size(0), index.size(2), index.size(3)}).transpose(0, 1);
  }
  std::optional<DistanceFactor> scales_by_distance(const Tensor&, int64_t, int64_t) override {
    return DistanceFactor{table, lowest, relu};
  }
  Tensor table;  ///< [H or 1, distances]
  int64_t lowest;
  bool relu;
};

/// Adds rows[i - j - lowest] to values, the ends to all beyond.
struct ValuesStep : ScoreStep {
  ValuesStep(Tensor rows, int64_t lowest) : rows(std::move(rows)), lowest(lowest) {}
  Tensor apply(const Tile& tile, const std::vector<Tensor>&) override { return tile.scores; }
  std::optional<DistanceTable> by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override {
    return DistanceTable{at::zeros({1, farthest - nearest + 1}, like.options()), nearest};
  }
  std::optional<DistanceValues> adds_to_values() override { return DistanceValues{rows, lowest}; }
  Tensor rows;
  int64_t lowest;
};

/// Adds 0.3 (q_raw + v) . r_(i-j) over the first c channels.
struct ByStep : ScoreStep {
  ByStep(Tensor v, Tensor r, int64_t lowest) : v(std::move(v)), r(std::move(r)), lowest(lowest) {}
  Tensor first(const Tensor& q) const {  // a sum in bfloat16 would be rounded
    const auto type = q.scalar_type() == at::kBFloat16 ? at::kFloat : q.scalar_type();
    return q.narrow(3, 0, r.size(2)).to(type) + v.to(type).unsqueeze(1);
  }
  std::vector<Tensor> prepare(const Tensor&, int64_t, int64_t) override { return {v, r}; }
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
    const Tensor p = tile.q.narrow(3, 0, r.size(2)) + prepared[0].unsqueeze(1);
    const Tensor all = at::matmul(p, prepared[1].transpose(1, 2)) * 0.3;  // [B, H, Lq, distances]
    return tile.scores + all.gather(-1, (tile.distance - lowest).expand(tile.scores.sizes()));
  }
  std::optional<QueryTable> by_query(const Tensor& q_raw, int64_t nearest, int64_t farthest) override {
    return QueryTable{first(q_raw), r.narrow(1, nearest - lowest, farthest - nearest + 1), 0.3};
  }
  Tensor v, r;  ///< [H, c], [H, distances, c]
  int64_t lowest;
};

/// Adds ln m_i(i - j) for spans 40 sigmoid(q_raw's last column + w), moved to the next odd sixteenth, which is the same
/// in float and double: ln m is steep where m is near 0.
struct SpanStep : ScoreStep {
  SpanStep(Tensor w, bool own) : w(std::move(w)), own(own) {}
  static constexpr double kRamp = 11;
  Tensor span(const Tensor& q, const Tensor& added) const {
    const auto type = q.scalar_type() == at::kBFloat16 ? at::kFloat : q.scalar_type();
    const Tensor z = 40 * (q.select(-1, -1).to(type) + added.to(type)).sigmoid();  // [B, H, L]
    return z + ((z * 8).floor() / 8 + 0.0625 - z).detach();
  }
  std::vector<Tensor> prepare(const Tensor&, int64_t, int64_t) override { return {w}; }
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
    const Tensor m =
        ((span(tile.q, prepared[0]).unsqueeze(-1) + kRamp - tile.distance.to(at::kDouble)) / kRamp).clamp(0, 1);
    Tensor unseen = m.le(1e-30);
    if (!own) unseen = unseen.logical_or(tile.distance.eq(0));
    return (tile.scores + m.clamp_min(1e-30).log()).masked_fill(unseen, -INFINITY);
  }
  std::optional<QuerySpan> spans(const Tensor& q_raw) override { return QuerySpan{span(q_raw, w), kRamp, own}; }
  Tensor w;  ///< [H, 1]
  bool own;
};

struct Case {
  Problem p;
  bool spans = false, own = true;
  bool table = false, one_table = false, by = false, factor = false, relu = true, values = false;
  int64_t value_rows = 9, value_lowest = -4;
  int64_t channels = 4, span = 700;
};

struct Outcome {
  Read read;
  std::vector<Tensor> gradients;
};

/// Runs in this type on copies of a double problem.
Outcome run(const Case& c, at::ScalarType type, bool plain, const std::vector<Tensor>& given, const Tensor& d_out,
            const Tensor& d_lse) {
  Problem p = c.p;
  p.type = type;
  std::vector<Tensor> leaves;
  size_t next = 0;
  const auto leaf = [&](Tensor& x) {
    x = given[next++].detach().to(type, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
    leaves.push_back(x);
  };
  leaf(p.q[0].q);
  for (size_t s = 0; s < p.keys.size(); ++s) leaf(p.keys[s].v), leaf(p.bands[s][0].k);
  leaf(p.q_raw);
  Tensor table, v, r, factor, rows;
  Tensor w;
  leaf(table), leaf(v), leaf(r), leaf(factor), leaf(rows), leaf(w);
  SpanStep span_step(w, c.own);
  ValuesStep values_step(rows, c.value_lowest);
  TableStep table_step(table, -c.span);
  ByStep by_step(v, r, -c.span);
  FactorStep factor_step(factor, -c.span, c.relu);
  if (c.factor) p.score.push_back(&factor_step);
  if (c.table) p.score.push_back(&table_step);
  if (c.by) p.score.push_back(&by_step);
  if (c.values) p.score.push_back(&values_step);
  if (c.spans) p.score.push_back(&span_step);
  p.plan.query_tile = 128, p.plan.key_tile = 512;
  Outcome out{p.run(plain), {}};
  if (!plain) {
    EXPECT_TRUE(why_not_fused(p.q, p.keys, p.plan).empty());
  }
  const Tensor lse = out.read.lse.masked_fill(out.read.lse.detach().isinf(), 0);
  const Tensor sum = (out.read.out * d_out.to(type)).sum() + (lse * d_lse.to(type)).sum();
  out.gradients = torch::autograd::grad({sum}, leaves, {}, std::nullopt, false, true);
  for (size_t n = 0; n < leaves.size(); ++n)
    if (!out.gradients[n].defined()) out.gradients[n] = at::zeros_like(leaves[n]);
  return out;
}

void expect_kernel_is_plain(const Case& c, const std::string& what, double bound = kBound) {
  const auto draw = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  const Problem& p = c.p;
  const int64_t distances = 2 * c.span;
  std::vector<Tensor> given = {p.q[0].q};
  for (size_t s = 0; s < p.keys.size(); ++s) given.push_back(p.keys[s].v), given.push_back(p.bands[s][0].k);
  given.push_back(p.q_raw);
  given.push_back(draw({c.one_table ? 1 : p.heads, distances}));
  given.push_back(draw({p.heads, c.channels}));
  given.push_back(draw({p.heads, distances, c.channels}));
  given.push_back(draw({c.one_table ? 1 : p.heads, distances}));
  given.push_back(draw({c.value_rows, p.keys[0].v.size(3)}));
  given.push_back(draw({p.heads, 1}));
  // Every number is one of float, so that both paths start from the same.
  for (Tensor& x : given) x = x.to(at::kFloat).to(at::kDouble);
  const Tensor d_out = draw({p.batch, p.heads, p.length, p.keys[0].v.size(3)}).to(at::kFloat).to(at::kDouble);
  const Tensor d_lse = draw({p.batch, p.heads, p.length}).to(at::kFloat).to(at::kDouble);
  const Outcome want = run(c, at::kDouble, true, given, d_out, d_lse);
  const Outcome got = run(c, at::kFloat, false, given, d_out, d_lse);
  EXPECT_LE(difference(got.read.out, want.read.out), bound) << what;
  EXPECT_LE(difference(got.read.lse, want.read.lse), bound) << what;
  for (size_t n = 0; n < given.size(); ++n) {
    EXPECT_LE(difference(got.gradients[n], want.gradients[n]), 2 * bound) << what << ", gradient " << n;
  }
}

Case make(int64_t batch, int64_t heads, int64_t groups, int64_t length, int64_t keys, int64_t width,
          const std::string& pattern) {
  Case c;
  c.p.batch = batch, c.p.heads = heads, c.p.groups = groups, c.p.length = length, c.p.width = width;
  c.p.pattern = pattern;
  c.p.make(keys);
  return c;
}

TEST(AttendKernel, LengthsAroundTiles) {
  at::manual_seed(1);
  for (const int64_t length : {1, 2, 6, 7, 15, 23, 25, 95, 96, 97, 127, 128, 129, 193, 257})
    for (const char* pattern : {"causal", "full", "causal & window(50)"}) {
      Case c = make(1, 2, 1, length, length, 16, pattern);
      expect_kernel_is_plain(c, text(pattern, " at ", length));
      c.table = c.by = true;
      expect_kernel_is_plain(c, text(pattern, " at ", length, " with tables"));
      c.factor = true;
      expect_kernel_is_plain(c, text(pattern, " at ", length, " with tables and factors"));
      c.factor = false, c.values = true;
      expect_kernel_is_plain(c, text(pattern, " at ", length, " with tables and values"));
      c.factor = true, c.values = false;
      c.table = c.by = c.relu = false;
      expect_kernel_is_plain(c, text(pattern, " at ", length, " with factors"));
    }
}

TEST(AttendKernel, SpansOfQueries) {
  at::manual_seed(9);
  for (const int64_t length : {1, 7, 23, 97, 129, 257})
    for (const char* pattern : {"causal", "causal & window(50)", "causal & dilated(30, 4)"})
      for (const bool own : {true, false}) {
        Case c = make(2, 4, 2, length, length, 16, pattern);
        c.spans = true, c.own = own;
        expect_kernel_is_plain(c, text(pattern, " at ", length));
        c.table = c.by = true;
        expect_kernel_is_plain(c, text(pattern, " at ", length, " with tables"));
        c.factor = c.values = true;
        expect_kernel_is_plain(c, text(pattern, " at ", length, " with all else"));
      }
  for (const int64_t length : {1, 3, 7}) {
    Case c = make(2, 8, 2, length, 300, 32, "causal");
    c.spans = true;
    expect_kernel_is_plain(c, text(length, " queries over a cache"));
  }
}

TEST(AttendKernel, AnyWidth) {
  at::manual_seed(2);
  for (const int64_t width : {1, 3, 16, 17, 31, 64, 80}) {
    Case c = make(1, 2, 2, 130, 140, width, "causal");
    c.by = true, c.channels = std::min<int64_t>(width, 5 + width % 3);
    expect_kernel_is_plain(c, text("width ", width));
    c.p.keys[0].v = at::randn({1, 2, 140, width + 5}, at::kDouble);  // values of another width
    expect_kernel_is_plain(c, text("width ", width, " and wider values"));
    c.values = true;
    for (const auto& [rows, lowest] : std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {2, 3}, {33, -16}, {300, -60}}) {
      c.value_rows = rows, c.value_lowest = lowest;
      expect_kernel_is_plain(c, text("width ", width, " and ", rows, " rows of values"));
    }
  }
}

TEST(AttendKernel, StepsOverACache) {
  at::manual_seed(3);
  for (const int64_t length : {1, 3, 6, 7}) {
    Case c = make(2, 8, 2, length, 300, 32, "causal");
    expect_kernel_is_plain(c, text(length, " queries"));
    c.table = c.by = true;
    expect_kernel_is_plain(c, text(length, " queries with tables"));
    c.p.gaps(static_cast<uint64_t>(length));
    expect_kernel_is_plain(c, text(length, " queries with gaps"));
    c.factor = true;
    expect_kernel_is_plain(c, text(length, " queries with gaps and factors"));
    c.values = true;
    expect_kernel_is_plain(c, text(length, " queries with gaps, factors and values"));
  }
}

TEST(AttendKernel, TwoSetsAsSegmentsHaveThem) {
  at::manual_seed(4);
  Case c = make(2, 4, 4, 200, 200, 16, "causal");
  c.p.q_at = c.p.keys[0].at = (at::arange(200, at::kLong) + 60).expand({2, 200});
  c.p.add_keys(at::arange(200, at::kLong).expand({2, 200}));
  const Tensor begin = at::floor_divide(c.p.q_at, at::scalar_tensor(64, at::kLong)) * 64;
  c.p.keys[0].from = begin, c.p.keys[1].until = begin, c.p.keys[1].from = begin - 64;
  for (const bool by : {false, true}) {
    c.table = c.by = by;
    expect_kernel_is_plain(c, text("segments, ", by));
  }
  c.p.keys[1].at = c.p.keys[1].at.sub(30).clamp_min(-1);  // a memory that is not full yet
  expect_kernel_is_plain(c, "an emptier memory");
}

TEST(AttendKernel, TablesOfOneHeadAndPastOneThread) {
  at::manual_seed(5);
  Case c = make(3, 4, 2, 110, 130, 16, "causal | window(20)");
  c.table = c.one_table = true;
  expect_kernel_is_plain(c, "one table for all heads");
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  c.by = true;
  expect_kernel_is_plain(c, "three threads");
  at::set_num_threads(threads);
}

TEST(AttendKernel, AnyCombination) {
  std::mt19937_64 random(7);
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  const auto chance = [&](int64_t percent) { return pick(0, 99) < percent; };
  for (int round = 0; round < 80; ++round) {
    at::manual_seed(100 + round);
    const int64_t groups = pick(1, 2), length = pick(1, 220);
    Case c = make(pick(1, 3), groups * pick(1, 2), groups, length, length + pick(0, 200), pick(4, 40),
                  std::vector<std::string>{"causal", "full", "causal & window(60)", "causal | window(3)"}[pick(0, 3)]);
    Problem& p = c.p;
    if (chance(50)) {
      const int64_t n = pick(0, 150), first = pick(0, 40);
      // In order, turned as in a ring, or in any order.
      Tensor at = at::arange(n, at::kLong) + first;
      if (chance(30)) at = at.roll(pick(0, 100));
      if (chance(20)) at = at::randperm(n, at::kLong) + first;
      p.add_keys(at.expand({p.batch, n}));
    }
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
    if (chance(20)) p.q[0].nearest = pick(-3, 6);
    c.table = chance(50), c.one_table = chance(30), c.by = chance(50);
    c.factor = chance(40), c.relu = chance(50), c.values = chance(40);
    c.spans = chance(30), c.own = chance(50);
    expect_kernel_is_plain(c, text("round ", round, ", ", p.pattern));
  }
}

TEST(AttendKernel, PatternsInTiles) {
  const std::vector<std::string> patterns = {"causal & (window(20) | stride(16))",
                                             "causal & (block_local(32, 0) | fixed(32, 3))",
                                             "causal & (block_window(16, 1) | columns(16) | random(16, 2, 1))",
                                             "prefix(40) | causal & window(9)",
                                             "global([0, 50, 100:104]) | window(12)",
                                             "causal & dilated(30, 4)",
                                             "columns(3)",
                                             "local2d(8, 16, 4, 4, 2, 3, block) & causal"};
  std::mt19937_64 random(11);
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  const auto chance = [&](int64_t percent) { return pick(0, 99) < percent; };
  for (int round = 0; round < 64; ++round) {
    at::manual_seed(300 + round);
    const int64_t groups = pick(1, 2), length = round % 5 == 0 ? pick(1, 6) : pick(1, 260);
    Case c = make(pick(1, 2), groups * pick(1, 2), groups, length, length + pick(0, 100), pick(4, 20),
                  patterns[static_cast<size_t>(round) % patterns.size()]);
    Problem& p = c.p;
    p.plan.by = AttendPlan::By::tiles;
    if (chance(30)) p.add_keys(at::randperm(pick(0, 150), at::kLong).expand({p.batch, -1}));
    if (chance(30)) p.gaps(random(), 0.05 * static_cast<double>(pick(1, 19)));
    if (chance(20)) {
      p.q_document = at::randint(0, 40, {p.batch, p.length}, at::kLong).eq(0).cumsum(1);
      for (auto& set : p.keys) set.document = at::randint(0, 40, set.at.sizes(), at::kLong).eq(0).cumsum(1);
    }
    for (auto& set : p.keys) {
      if (chance(25)) set.from = at::randint(-3, 100, {p.batch, p.length}, at::kLong);
      if (chance(25)) set.until = at::randint(0, 400, {p.batch, p.length}, at::kLong);
    }
    c.table = chance(50), c.by = chance(50), c.factor = chance(30), c.values = chance(30);
    if (chance(30)) p.plan.dropout = 0.4, p.plan.seed = random();
    expect_kernel_is_plain(c, text("round ", round, ", ", p.pattern));
  }
}

TEST(AttendKernel, PatternsOfLanesThatDiffer) {
  at::manual_seed(12);
  Case c = make(3, 2, 1, 130, 130, 8, "prefix(@prefix) | global(@global) | causal & window(5)");
  c.p.plan.by = AttendPlan::By::tiles;
  c.p.facts["prefix"] = at::tensor({3, 0, 100}, at::kLong);
  c.p.facts["global"] = at::tensor({5, 90, -1, -1, 0, 128}, at::kLong).view({3, 2});
  expect_kernel_is_plain(c, "facts");
}

TEST(AttendKernel, HugeScoresStayFinite) {
  at::manual_seed(8);
  Case c = make(1, 2, 2, 100, 100, 16, "causal");
  c.p.q[0].q = c.p.q[0].q * 300;
  // A score of 1000 is known to 6e-5 in float, and that is the relative error of its weight.
  expect_kernel_is_plain(c, "scores of some hundreds", 6e-5);
}

TEST(AttendKernel, Bfloat16ComputesInFloat) {
  at::manual_seed(9);
  Case c = make(2, 4, 2, 120, 150, 16, "causal");
  c.table = c.by = true;
  std::vector<Tensor> given = {c.p.q[0].q, c.p.keys[0].v, c.p.bands[0][0].k, c.p.q_raw};
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{4, 1400}, {4, 4}, {4, 1400, 4}, {4, 1400}, {9, 16}, {4, 1}}) {
    given.push_back(at::randn(sizes, at::kDouble));
  }
  for (Tensor& x : given) x = x.to(at::kBFloat16).to(at::kDouble);
  const Tensor d_out = at::randn({2, 4, 120, 16}).to(at::kBFloat16), d_lse = at::randn({2, 4, 120});
  const Outcome want = run(c, at::kDouble, true, given, d_out, d_lse.to(at::kBFloat16));
  const Outcome got = run(c, at::kBFloat16, false, given, d_out, d_lse);
  // Half a unit in the last place of bfloat16, 2^-9, of out; its gradient meets the rounded out.
  EXPECT_LE(difference(got.read.out, want.read.out), 0.002);
  EXPECT_EQ(got.read.lse.scalar_type(), at::kFloat);
  EXPECT_LE(difference(got.read.lse, want.read.lse), 0.002);
  for (size_t n = 0; n < given.size(); ++n) {
    EXPECT_EQ(got.gradients[n].scalar_type(), at::kBFloat16);
    EXPECT_LE(difference(got.gradients[n], want.gradients[n]), 0.01) << n;
  }
}

}  // namespace
}  // namespace kinfolk
