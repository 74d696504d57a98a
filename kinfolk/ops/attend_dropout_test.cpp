// Dropout of attention weights: which are dropped is a function of seed, lane, head and positions alone.
#include <ATen/Parallel.h>

#include "kinfolk/kernels/attend_drop.h"
#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

using By = AttendPlan::By;
constexpr double kRate = 0.3;

/// Values are unit vectors, so that out holds the weights.
Problem weights_problem(const std::string& pattern, int64_t length, at::ScalarType type = at::kFloat) {
  Problem p;
  p.batch = 2, p.heads = 4, p.groups = 2, p.length = length, p.width = 8, p.type = type, p.pattern = pattern;
  p.make();
  p.keys[0].v = at::eye(length, p.keys[0].v.options()).expand({2, 2, length, length});
  p.plan.dropout = kRate, p.plan.seed = 5;
  p.plan.query_tile = 128, p.plan.key_tile = 512;
  return p;
}
Tensor dropped(const Problem& p, const Tensor& out) { return out.eq(0).logical_and(p.seen(0)); }

/// By the definition, for queries and keys at these positions.  bool [B, H, L, S]
Tensor defined(const Problem& p) {
  const auto [batch, heads, length, keys] = std::tuple(p.batch, p.heads, p.length, p.keys[0].at.size(1));
  Tensor out = at::empty({batch, heads, length, keys}, at::kBool);
  bool* to = out.data_ptr<bool>();
  const Tensor q_at = p.q_at.contiguous(), k_at = p.keys[0].at.contiguous();
  const int32_t limit = kernels::drop_limit(p.plan.dropout);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < length; ++i)
        for (int64_t j = 0; j < keys; ++j) {
          const int64_t query = q_at.const_data_ptr<int64_t>()[b * length + i] + (b << 40);
          const int64_t key = k_at.const_data_ptr<int64_t>()[b * keys + j];
          *to++ = kernels::dropped(kernels::drop_query(kernels::drop_head(p.plan.seed, h), query),
                                   kernels::drop_key(key), limit);
        }
  return out.logical_and(p.seen(0));
}

TEST(AttendDropout, EveryPathDropsTheSame) {
  at::manual_seed(1);
  for (const int64_t length : {1, 5, 17, 96, 129, 200}) {
    Problem p = weights_problem("causal", length);
    const Tensor want = defined(p);
    EXPECT_TRUE(why_not_fused(p.q, p.keys, p.plan).empty());
    EXPECT_TRUE(dropped(p, p.run(false).out).equal(want)) << length;
    EXPECT_TRUE(dropped(p, p.run(true).out).equal(want)) << length;
    p.plan.query_tile = 7, p.plan.key_tile = 11;
    EXPECT_TRUE(dropped(p, p.run(true).out).equal(want)) << length;
  }
}

TEST(AttendDropout, ViewsHeadsAndThreadsDropTheSame) {
  at::manual_seed(2);
  for (const char* pattern : {"causal & (window(20) | stride(16))", "causal & (block_local(16, 0) | fixed(16, 2))",
                              "causal & stride(8)", "prefix(10) | causal & window(9)"}) {
    Problem p = weights_problem(pattern, 150);
    const Tensor want = defined(p);
    for (const By by : {By::views, By::tiles, By::automatic}) {
      p.plan.by = by;
      EXPECT_TRUE(dropped(p, p.run(false).out).equal(want)) << pattern;
    }
    p.per_head = {"causal", pattern};
    EXPECT_TRUE(dropped(p, p.run(false).out).equal(defined(p))) << pattern;
  }
  Problem p = weights_problem("causal", 300);
  const Tensor one = p.run(false).out;
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  EXPECT_TRUE(p.run(false).out.equal(one));
  at::set_num_threads(threads);
}

TEST(AttendDropout, PositionsNotPlaces) {
  at::manual_seed(3);
  Problem p = weights_problem("causal", 140);
  const Tensor whole = p.run(false).out;
  EXPECT_TRUE(p.run(false).out.equal(whole));  // the seed fixes it
  // The queries in two calls.
  Problem part = p;
  const auto rows = [&](int64_t first, int64_t n) {
    part.q[0].q = p.q[0].q.narrow(2, first, n), part.q_raw = p.q_raw.narrow(2, first, n);
    part.q_at = p.q_at.narrow(1, first, n), part.length = n;
    return part.run(false).out;
  };
  const Tensor halves = at::cat({rows(0, 61), rows(61, 79)}, 2);
  EXPECT_LE(difference(halves, whole), 1e-6);
  EXPECT_TRUE(halves.eq(0).equal(whole.eq(0)));
  EXPECT_TRUE(rows(100, 3).eq(0).equal(whole.narrow(2, 100, 3).eq(0)));  // few queries
  // Keys in another order, some of them invalid.
  const Tensor order = at::randperm(140, at::kLong);
  Problem turned = p;
  turned.keys[0].at = p.keys[0].at.index_select(1, order);
  turned.keys[0].v = p.keys[0].v.index_select(2, order), turned.bands[0][0].k = p.bands[0][0].k.index_select(2, order);
  EXPECT_LE(difference(turned.run(false).out, whole), 1e-6);
  EXPECT_TRUE(turned.run(false).out.eq(0).equal(whole.eq(0)));
  p.gaps(4);
  EXPECT_TRUE(dropped(p, p.run(false).out).equal(defined(p)));
  EXPECT_TRUE(dropped(p, p.run(true).out).equal(defined(p)));
}

TEST(AttendDropout, GradientsAreThoseOfThePlainPath) {
  at::manual_seed(4);
  for (const char* pattern : {"causal", "full", "causal & (window(20) | stride(16))"}) {
    Problem p;
    p.heads = 4, p.length = 137, p.pattern = pattern;
    p.make(150);
    p.plan.dropout = kRate, p.plan.seed = 9;
    const auto leaves = p.leaves();
    const Tensor d_out = at::randn({2, 4, 137, 8}, at::kDouble), d_lse = at::randn({2, 4, 137}, at::kDouble);
    const auto gradients = [&](Problem mine, at::ScalarType type, bool plain) {
      std::vector<Tensor> own;
      const auto leaf = [&](Tensor& x) { own.push_back(x = x.detach().to(type).requires_grad_(true)); };
      leaf(mine.q[0].q), leaf(mine.keys[0].v), leaf(mine.bands[0][0].k);
      const Read read = mine.run(plain);
      auto out = torch::autograd::grad({read.out, read.lse}, own, {d_out.to(type), d_lse.to(type)});
      out.push_back(read.out), out.push_back(read.lse);
      return out;
    };
    const auto want = gradients(p, at::kDouble, true), got = gradients(p, at::kFloat, false);
    for (size_t n = 0; n < want.size(); ++n) EXPECT_LE(difference(got[n], want[n]), 2e-5) << pattern << " " << n;
  }
}

TEST(AttendDropout, DrawsAreEvenAndIndependent) {
  const int64_t n = 512;
  std::vector<Tensor> draws;  // [n, n] each: another head, lane, seed and place
  for (const auto& [seed, head, query, key] : std::vector<std::tuple<uint64_t, int64_t, int64_t, int64_t>>{
           {0, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, int64_t{1} << 40, 0}, {1, 0, 0, 0}, {0, 0, 512, 0}, {0, 0, 0, 512}}) {
    Tensor draw = at::empty({n, n}, at::kDouble);
    double* to = draw.data_ptr<double>();
    const uint64_t words = kernels::drop_head(seed, head);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        *to++ = kernels::dropped(kernels::drop_query(words, query + i), kernels::drop_key(key + j),
                                 kernels::drop_limit(kRate));
    draws.push_back((draw - kRate) / std::sqrt(kRate * (1 - kRate)));  // mean 0, variance 1
  }
  const double bound = 4.5 / static_cast<double>(n);  // 4.5 standard errors of a mean of n^2
  const auto together = [&](const Tensor& a, const Tensor& b) { return (a * b).mean().item<double>(); };
  for (size_t x = 0; x < draws.size(); ++x) {
    const Tensor& d = draws[x];
    EXPECT_LE(std::abs(d.mean().item<double>()), bound) << x;
    EXPECT_NEAR(d.square().mean().item<double>(), 1, 2 * bound) << x;
    for (const int64_t step : {1, 2, 16, 128})
      for (const auto& [rows, columns] :
           std::vector<std::pair<int64_t, int64_t>>{{step, 0}, {0, step}, {step, step}, {step, -step}}) {
        EXPECT_LE(std::abs(together(d, d.roll({rows, columns}, {0, 1}))), bound) << x << " " << rows << " " << columns;
      }
    // The sums of rows and columns spread as those of independent draws: variance n, known to 4.5 sqrt(2 / n).
    for (const int64_t side : {0, 1})
      EXPECT_NEAR(d.sum(side).square().mean().item<double>() / n, 1, 4.5 * std::sqrt(2.0 / n)) << x;
    for (size_t y = 0; y < x; ++y) EXPECT_LE(std::abs(together(d, draws[y])), bound) << x << " " << y;
  }
  // Four corners of a rectangle: rows that differ by a constant would show here.
  const Tensor& d = draws[0];
  EXPECT_LE(std::abs((d * d.roll(1, 0) * d.roll(1, 1) * d.roll({1, 1}, {0, 1})).mean().item<double>()), bound);
}

TEST(AttendDropout, RatesNearTheEnds) {
  Problem p = weights_problem("full", 64);
  p.plan.dropout = 1e-9;
  EXPECT_EQ(p.run(false).out.eq(0).sum().item<int64_t>(), 0);
  p.plan.dropout = 0.999999;
  const Tensor out = p.run(false).out;
  EXPECT_LE(out.ne(0).sum().item<int64_t>(), 4);
  EXPECT_TRUE(out.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace kinfolk
