// The kernel where there is little, nothing or much to see: empty rows, no queries, no keys, padding, layouts, lengths.
#include <fstream>

#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

using By = AttendPlan::By;
constexpr double kFloatBound = 1e-5;

/// max(score, 0) (1 + |i - j| / 64), and rows of values by distance.
struct EveryHook : ScoreStep {
  explicit EveryHook(Tensor rows) : rows(std::move(rows)) {}
  static Tensor factor(const Tensor& distance, at::ScalarType type) { return 1 + distance.abs().to(type) / 64; }
  Tensor apply(const Tile& tile, const std::vector<Tensor>&) override {
    return tile.scores.relu() * factor(tile.distance, tile.scores.scalar_type());
  }
  std::optional<DistanceFactor> scales_by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override {
    const Tensor distance = at::arange(nearest, farthest + 1, at::kLong);
    return DistanceFactor{factor(distance, like.scalar_type()).unsqueeze(0), nearest, true};
  }
  std::optional<DistanceValues> adds_to_values() override { return DistanceValues{rows, 0}; }
  Tensor rows;
};

const std::vector<std::string> kPatterns = {"causal", "full", "causal & (window(5) | stride(7))"};

/// In every mode: what is called with the steps and the dropout of a plan.
void each_mode(Problem& p, const std::function<void(const std::string&)>& check) {
  EveryHook hook(at::randn({3, p.width}, at::TensorOptions().dtype(p.type)));
  for (const auto& pattern : kPatterns)
    for (const By by : {By::tiles, By::views})
      for (const bool hooked : {false, true})
        for (const double dropout : {0.0, 0.3}) {
          p.pattern = pattern, p.plan.by = by, p.plan.dropout = dropout;
          p.score.clear();
          if (hooked) p.score = {&hook};
          check(pattern + (by == By::tiles ? ", tiles" : ", views") + (hooked ? ", steps" : "") +
                (dropout > 0 ? ", dropout" : ""));
        }
  p.score.clear();
}

TEST(AttendEdges, EmptyRowsDoNotPoisonOthers) {
  at::manual_seed(1);
  for (const int64_t length : {4, 130}) {
    Problem p;
    p.batch = 1, p.length = length, p.type = at::kFloat;
    p.make();
    p.plan.query_tile = 128, p.plan.key_tile = 512;
    Problem whole = p;
    p.keys[0].from = at::zeros({1, length}, at::kLong);
    p.keys[0].from[0][2] = 1000;  // row 2 sees nothing
    each_mode(p, [&](const std::string& what) {
      for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
      whole.pattern = p.pattern, whole.plan = p.plan, whole.score = p.score;
      const Read read = p.run(false);
      EXPECT_EQ(read.out.select(2, 2).abs().max().item<float>(), 0) << what;
      EXPECT_EQ(read.lse.select(2, 2).max().item<float>(), -INFINITY) << what;
      const auto leaves = std::vector<Tensor>{p.q[0].q, p.bands[0][0].k, p.keys[0].v};
      const auto sum = [](const Tensor& out) { return out.slice(2, 0, 2).sum() + out.slice(2, 3).sum(); };
      const auto got = torch::autograd::grad({read.out.sum() + read.lse.exp().sum()}, leaves);
      const Read full = whole.run(false);
      const auto want = torch::autograd::grad({sum(full.out) + sum(full.lse.exp().unsqueeze(-1))}, leaves);
      for (size_t n = 0; n < got.size(); ++n) EXPECT_LE(difference(got[n], want[n]), kFloatBound) << what << " " << n;
    });
  }
}

TEST(AttendEdges, NothingToSeeAtAll) {
  Problem p;
  p.type = at::kFloat;
  p.make();
  p.keys[0].at = at::full({2, 33}, -1, at::kLong);
  each_mode(p, [&](const std::string& what) {
    for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
    const Read read = p.run(false);
    EXPECT_EQ(read.out.abs().max().item<float>(), 0) << what;
    EXPECT_TRUE(read.lse.eq(-INFINITY).all().item<bool>()) << what;
    for (const auto& g : torch::autograd::grad({read.out.sum()}, {p.q[0].q, p.keys[0].v}))
      EXPECT_EQ(g.abs().max().item<float>(), 0) << what;
  });
}

TEST(AttendEdges, NoQueriesAndNoKeys) {
  for (const auto& [length, keys] : std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 5}, {5, 0}, {1, 1}}) {
    Problem p;
    p.length = length, p.type = at::kFloat;
    p.make(std::max(length, keys));
    if (keys == 0) p.keys.clear(), p.bands.clear(), p.add_keys(at::zeros({2, 0}, at::kLong));
    each_mode(p, [&, length = length, keys = keys](const std::string& what) {
      for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
      const Read read = p.run(false);
      EXPECT_EQ(read.out.sizes(), (std::vector<int64_t>{2, 4, length, 8})) << what;
      EXPECT_TRUE(read.out.isfinite().all().item<bool>()) << what;
      if (length > 0) torch::autograd::grad({read.out.sum()}, {p.q[0].q});
      if (keys == 0 && length > 0) EXPECT_TRUE(read.lse.eq(-INFINITY).all().item<bool>()) << what;
    });
  }
}

// Padding in front and behind, other ones in each lane: the real tokens are those of a call without it.
TEST(AttendEdges, PaddingChangesNothing) {
  at::manual_seed(2);
  Problem p;
  p.batch = 1, p.length = 101, p.type = at::kFloat;
  p.make();
  Problem padded = p;
  padded.batch = 2, padded.length = 140;
  const int64_t before[] = {39, 13};
  padded.q_at = at::full({2, 140}, -1, at::kLong);
  const auto place = [&](const Tensor& x) {
    Tensor out = at::randn({2, x.size(1), 140, x.size(3)});
    for (int64_t b = 0; b < 2; ++b) out[b].narrow(1, before[b], 101).copy_(x[0]);
    return out;
  };
  for (int64_t b = 0; b < 2; ++b) padded.q_at[b].narrow(0, before[b], 101).copy_(p.q_at[0]);
  padded.keys[0].at = padded.q_at;
  padded.q[0].q = place(p.q[0].q), padded.q_raw = place(p.q_raw);
  padded.keys[0].v = place(p.keys[0].v), padded.bands[0][0].k = place(p.bands[0][0].k);
  each_mode(p, [&](const std::string& what) {
    if (p.plan.dropout > 0) return;  // other lanes draw other weights
    padded.pattern = p.pattern, padded.plan = p.plan, padded.score = p.score;
    for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
    for (auto& leaf : padded.leaves()) leaf.requires_grad_(true);
    const Read want = p.run(false), got = padded.run(false);
    const auto d_want = torch::autograd::grad({want.out.square().sum()}, {p.q[0].q, p.bands[0][0].k, p.keys[0].v});
    const auto d_got =
        torch::autograd::grad({got.out.square().sum()}, {padded.q[0].q, padded.bands[0][0].k, padded.keys[0].v});
    for (int64_t b = 0; b < 2; ++b) {
      EXPECT_LE(difference(got.out[b].narrow(1, before[b], 101), want.out[0]), kFloatBound) << what;
      EXPECT_EQ(got.out[b].narrow(1, 0, before[b]).abs().max().item<float>(), 0) << what;
      for (size_t n = 0; n < 3; ++n) {
        EXPECT_LE(difference(d_got[n][b].narrow(1, before[b], 101), d_want[n][0]), kFloatBound) << what << " " << n;
        EXPECT_EQ(d_got[n][b].narrow(1, 0, before[b]).abs().max().item<float>(), 0) << what << " " << n;
      }
    }
  });
}

TEST(AttendEdges, AnyLayoutAndItsGradients) {
  at::manual_seed(3);
  Problem p;
  p.length = 67, p.groups = 4, p.type = at::kFloat;
  p.make();
  p.q[0].q = at::randn({2, 67, 4, 16}).transpose(1, 2).slice(3, 0, 16, 2);
  p.bands[0][0].k = at::randn({1, 1, 134, 8}).expand({2, 4, 134, 8}).slice(2, 1, 134, 2);
  p.keys[0].v = at::randn({2, 4, 8, 67}).transpose(2, 3);
  p.keys[0].at = at::arange(134, at::kLong).slice(0, 0, 134, 2).div(2, "floor").expand({2, 67});
  Problem packed = p;
  packed.q[0].q = p.q[0].q.contiguous(), packed.bands[0][0].k = p.bands[0][0].k.contiguous();
  packed.keys[0].v = p.keys[0].v.contiguous(), packed.keys[0].at = p.keys[0].at.contiguous();
  const Tensor d_out = at::randn({4, 2, 67, 8}).transpose(0, 1);
  each_mode(p, [&](const std::string& what) {
    packed.pattern = p.pattern, packed.plan = p.plan, packed.score = p.score;
    const auto gradients = [&](Problem& x) {
      for (auto& leaf : x.leaves()) leaf.requires_grad_(true);
      const Read read = x.run(false);
      auto out = torch::autograd::grad({read.out}, {x.q[0].q, x.bands[0][0].k, x.keys[0].v}, {d_out});
      out.push_back(read.out);
      return out;
    };
    const auto got = gradients(p), want = gradients(packed);
    for (size_t n = 0; n < got.size(); ++n) EXPECT_LE(difference(got[n], want[n]), kFloatBound) << what << " " << n;
  });
}

TEST(AttendEdges, PatternsInTilesBeyond46341) {
  at::manual_seed(4);
  Problem p;
  p.batch = 1, p.heads = p.groups = 1, p.length = 46500, p.width = 16, p.type = at::kFloat;
  p.pattern = "causal & (window(64) | columns(4))";
  p.make();
  p.plan.by = By::tiles;
  const Tensor got = p.run(false).out.slice(2, 46300);
  Problem last = p;  // its last queries alone, in double
  const auto rows = [](const Tensor& x) { return x.slice(2, 46300).to(at::kDouble); };
  last.q[0].q = rows(p.q[0].q), last.q_raw = rows(p.q_raw), last.q_at = p.q_at.slice(1, 46300);
  last.keys[0].v = p.keys[0].v.to(at::kDouble), last.bands[0][0].k = p.bands[0][0].k.to(at::kDouble);
  last.length = 200;
  EXPECT_LE(difference(got, last.dense().out), kFloatBound);
}

int64_t peak_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
  return -1;
}

TEST(AttendEdges, MemoryOfPatternsInTiles) {
  Problem p;
  p.batch = 1, p.heads = p.groups = 1, p.length = 100000, p.width = 16, p.type = at::kFloat;
  p.pattern = "causal & (window(256) | columns(16))";
  p.make();
  p.plan.by = By::tiles;
  for (auto& leaf : p.leaves()) leaf.requires_grad_(true);
  const int64_t before = peak_kilobytes();
  ASSERT_GT(before, 0);
  torch::autograd::grad({p.run(false).out.sum()}, p.leaves());
  EXPECT_LT(peak_kilobytes() - before, 200 * 1024);
}

}  // namespace
}  // namespace kinfolk
