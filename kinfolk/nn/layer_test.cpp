#include "kinfolk/nn/layer.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/recompute.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

Context context_of(const Size& size, const Value& let = {}) {
  Context context;
  context.size = size;
  context.like = at::TensorOptions().dtype(at::kDouble);
  context.let = let;
  return context;
}

std::shared_ptr<Layer> layer_of(const std::string& toml, const Size& size = tiny_size()) {
  return std::make_shared<Layer>(parse_toml(toml, "t.toml"), context_of(size), "layers.0");
}

std::string fault(const std::string& toml) {
  try {
    layer_of(toml);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

Tensor sample(int64_t lanes, int64_t length) {
  return at::randn({lanes, length, tiny_size().width}, at::detail::createCPUGenerator(3),
                   at::TensorOptions(at::kDouble));
}

TEST(Layer, NormsStandWhereTheRecipeSays) {
  const Tensor x = sample(2, 3);
  const Batch batch;
  Pass pass{batch};
  const auto run = [&](const std::string& norm) {
    const auto layer = layer_of("[[branches]]\nkind = \"mlp\"\nnorm = \"" + norm + "\"");
    const Step& step = layer->steps()[0];
    EXPECT_EQ(step.norm_before != nullptr, norm == "before" || norm == "both");
    EXPECT_EQ(step.norm_after != nullptr, norm == "after" || norm == "both");
    for (const auto& [name, weight] : trainable(*layer)) {
      const at::NoGradGuard guard;
      weight.copy_(at::randn(weight.sizes(), at::detail::createCPUGenerator(4), weight.options().requires_grad(false)));
    }
    const Tensor read = step.norm_before ? step.norm_before->forward(x) : x;
    Tensor sum = x + step.branch->forward(read, pass, nullptr);
    if (step.norm_after) sum = step.norm_after->forward(sum);
    EXPECT_EQ(difference(layer->forward(x, pass, nullptr), sum), 0) << norm;
    return sum;
  };
  EXPECT_GT(difference(run("before"), run("none")), 0.1);
  EXPECT_GT(difference(run("after"), run("both")), 0.1);
}

TEST(Layer, TheLayersWiringHoldsForBranchesWithoutTheirOwn) {
  const auto layer = layer_of(
      "norm = \"after\"\nnorm_kind = \"rms\"\n[[branches]]\nkind = \"mlp\"\n[[branches]]\nkind = \"mlp\"\nnorm = "
      "\"before\"\n");
  EXPECT_TRUE(layer->steps()[0].norm_after && !layer->steps()[0].norm_before);
  EXPECT_FALSE(layer->steps()[0].norm_after->bias.defined());  // rms
  EXPECT_TRUE(layer->steps()[1].norm_before && !layer->steps()[1].norm_after);
}

TEST(Layer, TheSignalIsReadByTheFirstBranchAndStaysOffTheStream) {
  const auto layer = layer_of("[[branches]]\nkind = \"mlp\"\n[[branches]]\nkind = \"glu\"");
  const Tensor x = sample(1, 4), signal = sample(1, 4) * 0.3;
  const Batch batch;
  Pass pass{batch};
  const Step &a = layer->steps()[0], &b = layer->steps()[1];
  const Tensor first = x + a.branch->forward(a.norm_before->forward(x) + signal, pass, nullptr);
  const Tensor expected = first + b.branch->forward(b.norm_before->forward(first), pass, nullptr);
  EXPECT_EQ(difference(layer->forward(x, pass, nullptr, signal), expected), 0);
  layer->checkpointing = true;
  EXPECT_EQ(difference(layer->forward(x, pass, nullptr, signal), expected), 0);
}

TEST(Layer, Faults) {
  EXPECT_NE(fault("repeat = 1").find("[layers.0.branches] expected at least one [[layers.branches]]"),
            std::string::npos);
  EXPECT_NE(fault("branches = []").find("t.toml:1:1: [layers.0.branches]"), std::string::npos);
  EXPECT_NE(fault("norms = 1\n[[branches]]\nkind = \"mlp\"").find("t.toml:1:1: [layers.0.norms] expected a known key"),
            std::string::npos);
  EXPECT_NE(fault("[[branches]]\nkind = \"mpl\"")
                .find("[layers.0.branches.0] expected a branch; found mpl (did you mean mlp?)"),
            std::string::npos);
  EXPECT_NE(fault("[[branches]]\nratio = 1").find("expected a branch; found nothing"), std::string::npos);
  EXPECT_NE(fault("[[branches]]\nkind = \"mlp\"\nnorm = \"pre\"")
                .find("t.toml:3:1: [layers.0.branches.0.norm] expected one of"),
            std::string::npos);
  EXPECT_NE(fault("[[branches]]\nkind = \"mlp\"\nresidual = \"sum\"")
                .find("[layers.0.branches.0.residual] expected a residual"),
            std::string::npos);
}

TEST(Layer, BothTakesTheWeakerOfEachPoint) {
  Traits a, b;
  a.causal = false, a.bounded = true, a.relative = true, a.context = 10, a.why_not = "one";
  b.streams = false, b.bounded = true, b.carries = true, b.context = 0, b.why_not = "two";
  const Traits out = both(a, b);
  EXPECT_FALSE(out.causal || out.streams || out.relative);
  EXPECT_TRUE(out.bounded && out.carries);
  EXPECT_EQ(out.context, 10);
  EXPECT_EQ(out.why_not, "one; two");
  b.context = 7, b.why_not = "one";
  EXPECT_EQ(both(a, b).context, 7);
  EXPECT_EQ(both(a, b).why_not, "one");
}

/// A branch with a state, a loss, a random draw and an update, to see what checkpointing does with them.
struct Probe : Branch {
  struct Options {
    template <class Visit>
    void fields(Visit&&) {}
  };
  Probe(const Options&, const Context& context) {
    weight = register_parameter("weight", draw_parameter(context, {context.size.width}, 1));
  }
  State start(int64_t batch, at::TensorOptions like) const override {
    State state;
    state.tensors["sum"] = at::zeros({batch, weight.size(0)}, like);
    return state;
  }
  double flops(int64_t, int64_t) const override { return 0; }
  Tensor forward(const Tensor& x, Pass& pass, State* state) override {
    ++runs;
    Tensor y = dropout(x * weight, 0.5, true, pass);
    if (state) {
      y = y + state->tensors["sum"].unsqueeze(1);
      state->tensors["sum"] = y.select(1, -1);
    }
    add_loss(pass, "probe", y.pow(2).mean());
    if (pass.updates) pass.updates->push_back([] {});
    return y;
  }
  Tensor weight;
  int runs = 0;
};

TEST(Layer, CheckpointingKeepsStatesLossesDrawsAndUpdates) {
  if (!registry<Branch>().has("probe")) registry<Branch>().add<Probe>("probe", "for this test");
  const auto layer = layer_of("[[branches]]\nkind = \"probe\"\n[[branches]]\nkind = \"probe\"");
  const auto run = [&](bool checkpointing) {
    layer->checkpointing = checkpointing;
    for (const auto& [name, weight] : trainable(*layer)) weight.mutable_grad() = Tensor();
    const Tensor x = sample(2, 3).set_requires_grad(true);
    State state = layer->start(2, x.options().requires_grad(false));
    std::map<std::string, Tensor> losses;
    std::vector<std::function<void()>> updates;
    Tensor sum = at::zeros({}, x.options());
    for (int call = 0; call < 2; ++call) {  // the second call's gradient reaches the first through the state
      auto batch = std::make_unique<Batch>();
      Pass pass{*batch};
      pass.seed = 5, pass.losses = &losses, pass.updates = &updates;
      sum = sum + layer->forward(x, pass, &state).pow(3).sum();
      EXPECT_EQ(pass.draws, 2u);
      // The caller's batch is gone when backward runs.
    }
    EXPECT_EQ(updates.size(), 4u);
    sum = sum + losses.at("probe");
    const double value = sum.item<double>();
    sum.backward();
    EXPECT_EQ(updates.size(), 4u);
    std::vector<Tensor> out{at::full({}, value), x.grad(), state.flat().begin()->second.detach()};
    for (const auto& [name, weight] : trainable(*layer)) out.push_back(weight.grad());
    return out;
  };
  const auto plain = run(false);
  const auto& probe = dynamic_cast<Probe&>(*layer->steps()[0].branch);
  const int before = probe.runs;
  const auto again = run(true);
  EXPECT_EQ(probe.runs - before, 4);  // each call twice
  ASSERT_EQ(plain.size(), again.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_LT(difference(plain[i], again[i]), 1e-12) << i;
}

TEST(Recompute, GradientsOfInputsAndParameters) {
  const Tensor a = at::randn({3}, at::kDouble).set_requires_grad(true),
               w = at::randn({3}, at::kDouble).set_requires_grad(true);
  const Tensor unused = at::randn({3}, at::kDouble).set_requires_grad(true), fixed = at::randn({3}, at::kDouble);
  const auto f = [&](const std::vector<Tensor>& in, bool) {
    return std::vector<Tensor>{in[0] * w + in[1], in[0].detach() * 2, in[1], at::ones({2}, at::kLong)};
  };
  const auto out = recompute(f, {a, fixed}, {w, unused});
  EXPECT_FALSE(out[3].requires_grad());
  (out[0].pow(2).sum() + out[1].sum()).backward();
  const Tensor inner = 2 * (a * w + fixed).detach();
  EXPECT_LT(difference(a.grad(), inner * w.detach()), 1e-15);
  EXPECT_LT(difference(w.grad(), inner * a.detach()), 1e-15);
  EXPECT_FALSE(unused.grad().defined());
}

}  // namespace
}  // namespace kinfolk
