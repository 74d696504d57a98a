#include "kinfolk/nn/depth/universal.h"

#include <gtest/gtest.h>

#include "kinfolk/reference/golden.h"
#include "kinfolk/reference/universal.h"

namespace kinfolk {
namespace {

/// One shared layer as the article has it: attention and a relu feed-forward, normalised after the sum.
struct Bench {
  Bench(int64_t width, int64_t feed, int64_t heads, const Universal::Options& options, const std::string& pattern,
        at::ScalarType type) {
    context.size.width = width, context.size.feed = feed, context.size.heads = heads, context.size.depth = 3;
    context.like = at::TensorOptions().dtype(type);
    context.generator = at::detail::createCPUGenerator(5);
    const Value table = parse_toml("norm = \"after\"\n[[branches]]\nkind = \"attention\"\npattern = \"" + pattern +
                                       "\"\n[[branches]]\nkind = \"mlp\"\nactivation = \"relu\"\n",
                                   "test.toml");
    layers = {std::make_shared<Layer>(table, context, "layers.0")};
    depth = std::make_shared<Universal>(options, context);
  }
  Tensor weight(const std::string& name) const {
    const auto of_layer = layers[0]->named_parameters();
    return of_layer.contains(name) ? of_layer[name] : depth->named_parameters()[name];
  }
  /// Our weights are [out, in].
  void set(const std::string& name, const Tensor& value) const {
    at::NoGradGuard guard;
    const Tensor to = weight(name);
    Tensor(to).copy_(value.view_as(to));
  }
  Tensor run(const Tensor& x, State* state = nullptr) {  // [B, N, D]
    const Batch batch{at::zeros({x.size(0), x.size(1)}, at::kLong), {}};
    losses.clear(), trace.clear();
    Pass pass{batch};
    pass.position = (at::arange(x.size(1)) + seen).expand({x.size(0), x.size(1)});
    pass.state = state, pass.losses = &losses, pass.trace = &trace;
    return depth->run(x, layers, {}, pass, state);
  }
  Context context;
  std::vector<std::shared_ptr<Layer>> layers;
  std::shared_ptr<Universal> depth;
  std::map<std::string, Tensor> losses, trace;
  int64_t seen = 0;
};

const std::vector<std::pair<std::string, std::string>> kMatrices{
    {"wq", "branches.0.q.weight"},   {"wk", "branches.0.k.weight"},  {"wv", "branches.0.v.weight"},
    {"wo", "branches.0.out.weight"}, {"w1", "branches.1.in.weight"}, {"w2", "branches.1.out.weight"}};
const std::vector<std::pair<std::string, std::string>> kVectors{
    {"b1", "branches.1.in.bias"}, {"b2", "branches.1.out.bias"}, {"wp", "halt.weight"}, {"bp", "halt.bias"}};

Universal::Options options_of(int64_t steps, double eps, bool with_position) {
  Universal::Options options;
  options.steps = steps, options.eps = eps, options.signal = with_position ? "stream" : "branch";
  return options;
}

TEST(Universal, Golden) {
  for (const auto& c : golden::cases("attention/universal_transformer")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const Tensor x = c.at("in.x").to(type).requires_grad_();
      Bench bench(x.size(2), c.at("param.b1").size(0), c.config.at("heads").get<int64_t>(),
                  options_of(c.config.at("max_steps").get<int64_t>(), c.config.at("eps").get<double>(),
                             c.config.at("residual").get<std::string>() == "with_position"),
                  "full", type);
      for (const auto& [theirs, ours] : kMatrices) bench.set(ours, c.at("param." + theirs).t().contiguous());
      for (const auto& [theirs, ours] : kVectors) bench.set(ours, c.at("param." + theirs));
      const Tensor y = bench.run(x);
      golden::expect_close(y, c.at("out.y"), c, "y");
      EXPECT_TRUE(bench.trace.at("updates").equal(c.at("out.updates"))) << c.name;
      golden::expect_close(bench.losses.at("ponder"), c.at("out.ponder").mean(), c, "ponder");
      const Tensor ponder = bench.trace.at("ponder");
      golden::expect_close(ponder, c.at("out.ponder"), c, "ponder of each position");
      ((y * c.at("cot.y")).sum() + (ponder * c.at("cot.ponder")).sum()).backward();
      golden::expect_gradient(x.grad(), c.at("grad.in.x"), c, "x");
      for (const auto& [theirs, ours] : kMatrices) {
        golden::expect_gradient(bench.weight(ours).grad().t(), c.at("grad.param." + theirs), c, theirs);
      }
      for (const auto& [theirs, ours] : kVectors) {
        const Tensor want = c.at("grad.param." + theirs);
        golden::expect_gradient(bench.weight(ours).grad().view_as(want), want, c, theirs);
      }
    }
  }
}

TEST(Universal, SignalGolden) {
  for (const auto& c : golden::cases("attention/ut_coordinate")) {
    Universal::Options options;
    options.base = c.config.at("base").get<double>();
    const int64_t length = c.config.at("length").get<int64_t>(), width = c.config.at("width").get<int64_t>();
    Bench bench(width, 4, 1, options, "causal", at::kFloat);
    for (int64_t t = 1; t <= c.config.at("steps").get<int64_t>(); ++t) {
      const Tensor want = c.at("out.pe")[t - 1];
      golden::expect_close(bench.depth->signal(at::arange(length), t, width, want.options()), want, c,
                           text("step ", t));
      EXPECT_LT((reference::universal_signal(length, t, width, options.base) - want).abs().max().item<double>(), 1e-6);
    }
  }
}

TEST(Universal, EqualsTheLoops) {
  at::manual_seed(8);
  for (const bool with_position : {false, true}) {
    for (const bool causal : {true, false}) {
      Bench bench(8, 12, 2, options_of(4, 0.01, with_position), causal ? "causal" : "full", at::kDouble);
      for (const auto& [theirs, ours] : kVectors) bench.set(ours, at::randn_like(bench.weight(ours)));
      const auto w = [&](const std::string& name) { return bench.weight(name).detach(); };
      const reference::UniversalWeights weights{
          w("branches.0.q.weight").t(),   w("branches.0.k.weight").t(),  w("branches.0.v.weight").t(),
          w("branches.0.out.weight").t(), w("branches.1.in.weight").t(), w("branches.1.in.bias"),
          w("branches.1.out.weight").t(), w("branches.1.out.bias"),      w("halt.weight")[0],
          w("halt.bias").item<double>()};
      const Tensor x = at::randn({2, 6, 8}, at::kDouble);
      at::NoGradGuard guard;
      const Tensor y = bench.run(x);
      for (int64_t b = 0; b < 2; ++b) {
        const auto want = reference::universal(x[b], weights, 2, 4, 0.01, with_position, causal);
        EXPECT_LT((y[b] - want.y).abs().max().item<double>(), 1e-12);
        EXPECT_TRUE(bench.trace.at("updates")[b].equal(want.updates));
        EXPECT_LT((bench.trace.at("ponder")[b] - want.ponder).abs().max().item<double>(), 1e-13);
      }
    }
  }
}

TEST(Universal, RunsTwiceTheSameWithAndWithoutState) {
  Universal::Options options;
  options.bias = 3;  // halts at the second step or so: a run without a state may end before its last step
  options.steps = 6;
  Bench bench(8, 12, 2, options, "causal", at::kDouble);
  at::NoGradGuard guard;
  const Tensor x = at::randn({2, 5, 8}, at::kDouble);
  const Tensor first = bench.run(x);
  EXPECT_LT(bench.trace.at("updates").max().item<int64_t>(), 6);
  EXPECT_TRUE(bench.run(x).equal(first));
  State state = bench.depth->start(bench.layers, 2, x.options());
  EXPECT_EQ(state.parts.size(), 6u);
  const Tensor carried =
      at::cat({bench.run(x.slice(1, 0, 2), &state), (bench.seen = 2, bench.run(x.slice(1, 2), &state))}, 1);
  EXPECT_LT((carried - first).abs().max().item<double>(), 1e-13);
}

TEST(Universal, WithoutHaltingItIsItsLayerAppliedAgainAndAgain) {
  Universal::Options options;
  options.halting = "none", options.signal = "none", options.steps = 3;
  Bench bench(8, 12, 2, options, "causal", at::kDouble);
  at::NoGradGuard guard;
  const Tensor x = at::randn({1, 5, 8}, at::kDouble);
  EXPECT_TRUE(bench.depth->parameters().empty());
  const Batch batch{at::zeros({1, 5}, at::kLong), {}};
  Pass pass{batch};
  pass.position = at::arange(5).view({1, 5});
  Tensor want = x;
  for (int t = 0; t < 3; ++t) want = bench.layers[0]->forward(want, pass, nullptr);
  EXPECT_TRUE(bench.run(x).equal(want));
  EXPECT_TRUE(bench.trace.at("updates").eq(3).all().item<bool>());
  EXPECT_TRUE(bench.losses.empty());
}

}  // namespace
}  // namespace kinfolk
