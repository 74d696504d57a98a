#include "kinfolk/nn/depth/reversible.h"

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"
#include "kinfolk/reference/golden.h"
#include "kinfolk/reference/reversible.h"

namespace kinfolk {
namespace {

const std::vector<std::pair<std::string, std::string>> kMatrices{
    {"wq", "branches.0.q.weight"},   {"wk", "branches.0.k.weight"},  {"wv", "branches.0.v.weight"},
    {"wo", "branches.0.out.weight"}, {"w1", "branches.1.in.weight"}, {"w2", "branches.1.out.weight"}};
const std::vector<std::pair<std::string, std::string>> kVectors{{"b1", "branches.1.in.bias"},
                                                                {"b2", "branches.1.out.bias"}};

/// The article's layers without norms: attention of one head, and a feed-forward in chunks.
struct Bench {
  Bench(int64_t width, int64_t feed, int64_t depth, int64_t chunk, const std::string& activations,
        at::ScalarType type = at::kDouble) {
    Context context;
    context.size.width = width, context.size.feed = feed, context.size.heads = 1, context.size.depth = depth;
    context.like = at::TensorOptions().dtype(type);
    context.generator = at::detail::createCPUGenerator(5);
    const Value table = parse_toml(
        text("norm = \"none\"\n[[branches]]\nkind = \"attention\"\n[[branches]]\nkind = \"chunked\"\nchunk = ", chunk,
             "\nfeed = { kind = \"mlp\", activation = \"relu\" }\n"),
        "test.toml");
    for (int64_t i = 0; i < depth; ++i) layers.push_back(std::make_shared<Layer>(table, context, "layers.0"));
    Reversible::Options options;
    options.activations = activations;
    stack = std::make_shared<Reversible>(options, context);
  }
  Tensor weight(const std::string& name, size_t layer = 0) const { return layers[layer]->named_parameters()[name]; }
  void set(const golden::Case& c) const {
    const at::NoGradGuard guard;
    for (const auto& [theirs, ours] : kMatrices) weight(ours).copy_(c.at("param." + theirs).t());
    for (const auto& [theirs, ours] : kVectors) weight(ours).copy_(c.at("param." + theirs));
  }
  Reversible::Streams run(const Tensor& x1, const Tensor& x2, bool inverse = false) const {
    const Batch batch{at::zeros({x1.size(0), x1.size(1)}, at::kLong), {}};
    Pass pass{batch};
    pass.position = at::arange(x1.size(1)).expand({x1.size(0), x1.size(1)});
    return inverse ? stack->inverse({x1, x2}, layers, pass, weight("branches.0.q.weight").scalar_type())
                   : stack->forward({x1, x2}, layers, pass, nullptr);
  }
  std::vector<reference::ReversibleLayer> as_reference() const {
    std::vector<reference::ReversibleLayer> out;
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto w = [&](const char* name) { return weight(name, i).detach(); };
      out.push_back({w("branches.0.q.weight").t(), w("branches.0.k.weight").t(), w("branches.0.v.weight").t(),
                     w("branches.0.out.weight").t(), w("branches.1.in.weight").t(), w("branches.1.in.bias"),
                     w("branches.1.out.weight").t(), w("branches.1.out.bias")});
    }
    return out;
  }
  std::vector<std::shared_ptr<Layer>> layers;
  std::shared_ptr<Reversible> stack;
};

TEST(Reversible, Golden) {
  for (const auto& c : golden::cases("attention/reversible")) {
    const bool inverse = c.has("in.y1");
    const std::string in1 = inverse ? "y1" : "x1", in2 = inverse ? "y2" : "x2";
    const std::string out1 = inverse ? "x1" : "y1", out2 = inverse ? "x2" : "y2";
    for (const auto type : {at::kDouble, at::kFloat}) {
      for (const char* activations : {"recomputed", "kept"}) {
        const Tensor a = c.at("in." + in1).to(type).requires_grad_(), b = c.at("in." + in2).to(type).requires_grad_();
        const Bench bench(a.size(2), c.at("param.b1").size(0), 1, c.config.at("ff_chunk").get<int64_t>() * a.size(0),
                          activations, type);
        bench.set(c);
        const auto [first, second] = bench.run(a, b, inverse);
        golden::expect_close(first, c.at("out." + out1), c, out1);
        golden::expect_close(second, c.at("out." + out2), c, out2);
        ((first * c.at("cot." + out1)).sum() + (second * c.at("cot." + out2)).sum()).backward();
        golden::expect_gradient(a.grad(), c.at("grad.in." + in1), c, in1);
        golden::expect_gradient(b.grad(), c.at("grad.in." + in2), c, in2);
        for (const auto& [theirs, ours] : kMatrices) {
          golden::expect_gradient(bench.weight(ours).grad().t(), c.at("grad.param." + theirs), c, theirs);
        }
        for (const auto& [theirs, ours] : kVectors) {
          golden::expect_gradient(bench.weight(ours).grad(), c.at("grad.param." + theirs), c, theirs);
        }
      }
    }
  }
}

TEST(Reversible, EqualsTheLoopsAndTheirInverse) {
  at::manual_seed(4);
  const Bench bench(6, 10, 3, 4, "recomputed");
  const Tensor x1 = at::randn({2, 7, 6}, at::kDouble), x2 = at::randn({2, 7, 6}, at::kDouble);
  const at::NoGradGuard guard;
  const auto [y1, y2] = bench.run(x1, x2);
  const auto [b1, b2] = bench.run(y1, y2, true);
  EXPECT_LT(difference(b1, x1), 1e-13);
  EXPECT_LT(difference(b2, x2), 1e-13);
  for (int64_t b = 0; b < 2; ++b) {
    const auto [w1, w2] = reference::reversible(x1[b], x2[b], bench.as_reference());
    EXPECT_LT(difference(y1[b], w1), 1e-13);
    EXPECT_LT(difference(y2[b], w2), 1e-13);
    const auto [v1, v2] = reference::reversible_inverse(w1, w2, bench.as_reference());
    EXPECT_LT(difference(v1, x1[b]), 1e-13);
    EXPECT_LT(difference(v2, x2[b]), 1e-13);
  }
}

/// A recipe with this depth; its windows and the like shorter than the text.
Recipe reversible(const std::string& name, const std::string& activations) {
  Recipe recipe = load_recipe(name);
  if (Value* let = recipe.tree.find("let"))
    for (auto& [key, value] : *let->as<Value::Table>())
      if (value.as<int64_t>()) value = Value(int64_t{16});
  Value depth{Value::Table{}};
  depth.set("kind", "reversible");
  depth.set("activations", activations);
  recipe.tree.set("depth", depth);
  return recipe;
}

struct Ran {
  std::map<std::string, Tensor> losses, gradients;
  Tensor loss;
  State state;
  size_t updates = 0;
};

/// Two calls, the second going on from the first's state, and the gradients of a sum over `of`: scores of the calls and
/// auxiliary losses.
struct Of {
  bool first = true, second = true, losses = true;
};
Ran train_on(Model& model, Of of, int64_t length = 40) {
  Ran ran;
  std::vector<std::function<void()>> updates;
  const bool streams = model.traits().streams;
  ran.state = model.start(2);
  ran.loss = at::zeros({}, model.weights()[0].second.options());
  for (const int64_t call : {0, 1}) {
    const Batch batch = random_batch(2, length, model.size().vocabulary, static_cast<uint64_t>(call + 1));
    Pass pass{batch};
    pass.seed = 7, pass.losses = &ran.losses, pass.updates = &updates;
    if (streams) pass.state = &ran.state;
    const Tensor scores = model.forward(pass);
    if (call == 0 ? of.first : of.second) {
      ran.loss = ran.loss + at::cross_entropy_loss(scores.flatten(0, 1), batch.fact("target").flatten());
    }
  }
  if (of.losses)
    for (const auto& [name, value] : ran.losses) ran.loss = ran.loss + value;
  for (const auto& [name, weight] : model.weights()) weight.mutable_grad() = Tensor();
  ran.state = ran.state.clone();
  const State before = ran.state.clone();
  ran.loss.backward();
  for (const auto& [name, tensor] : before.flat()) EXPECT_TRUE(tensor.equal(ran.state.flat().at(name))) << name;
  for (const auto& [name, weight] : model.weights()) ran.gradients[name] = weight.grad();
  ran.updates = updates.size();
  return ran;
}

void expect_same(const Ran& found, const Ran& expected, double bound) {
  EXPECT_EQ(found.loss.item<double>(), expected.loss.item<double>());
  EXPECT_EQ(found.updates, expected.updates);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (const auto& [name, loss] : expected.losses) {
    EXPECT_EQ(found.losses.at(name).item<double>(), loss.item<double>()) << name;
  }
  const auto flat = found.state.flat();
  for (const auto& [name, tensor] : expected.state.flat()) EXPECT_TRUE(tensor.equal(flat.at(name))) << name;
  for (const auto& [name, gradient] : expected.gradients) {
    const Tensor got = found.gradients.at(name);
    if (!gradient.defined()) {
      EXPECT_TRUE(!got.defined() || got.abs().max().item<double>() == 0) << name;
      continue;
    }
    ASSERT_TRUE(got.defined()) << name;
    EXPECT_LT(difference(got, gradient), bound) << name;
  }
}

struct ReversibleRecipes : testing::TestWithParam<std::string> {};
/// All but the one that is made of another depth.
std::vector<std::string> names_without_depth() {
  std::vector<std::string> out = recipe_names();
  std::erase(out, "universal");
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, ReversibleRecipes, testing::ValuesIn(names_without_depth()),
                         [](const auto& info) { return info.param; });

TEST_P(ReversibleRecipes, GradientsAreThoseOfOrdinaryAutograd) {
  Size size = tiny_size();
  size.depth = 3, size.dropout = 0.2;
  const auto made = [&](const char* activations, at::ScalarType type) {
    return Model::make(reversible(GetParam(), activations), size, 1, at::TensorOptions().dtype(type));
  };
  const auto names = tiny(GetParam())->weights();
  if (std::any_of(names.begin(), names.end(), [](const auto& w) { return w.first.find(".after.") != w.first.npos; })) {
    EXPECT_THROW(made("recomputed", at::kDouble), UsageError) << "a norm after the sum cannot be undone";
    return;
  }
  const auto model = made("recomputed", at::kDouble), plain = made("kept", at::kDouble);
  expect_same(train_on(*model, {}), train_on(*plain, {}), 1e-10);
}

TEST(Reversible, GradientsInFloatOverManyLayers) {
  Size size = tiny_size();
  size.depth = 24, size.dropout = 0.1;
  const auto made = [&](const char* activations) { return Model::make(reversible("rope", activations), size); };
  expect_same(train_on(*made("recomputed"), {}, 96), train_on(*made("kept"), {}, 96), 1e-12);
}

/// Largest difference over the largest value.
double relative(const Tensor& a, const Tensor& b) {
  return ((a.to(at::kDouble) - b.to(at::kDouble)).abs().max() / b.abs().max()).item<double>();
}

TEST(Reversible, FloatReadsTheVeryNumbersAgain) {
  const Bench bench(16, 24, 12, 1024, "kept", at::kFloat);
  const auto draw = [] { return at::randint(-5000, 5000, {2, 40, 16}, at::kFloat) / 1024; };
  const Tensor x1 = draw(), x2 = draw();
  const at::NoGradGuard guard;
  const auto [y1, y2] = bench.run(x1, x2);
  EXPECT_GT(relative(y1, x1), 1e-2);
  const auto [b1, b2] = bench.run(y1, y2, true);
  EXPECT_EQ(relative(b1, x1), 0);
  EXPECT_EQ(relative(b2, x2), 0);
}

TEST(Reversible, RoundingOfStreamsCostsNothingThatAFloatShows) {
  Size size = tiny_size();
  size.depth = 6;
  const auto made = [&](at::ScalarType type) {
    return Model::make(reversible("rope", "recomputed"), size, 1, at::TensorOptions().dtype(type));
  };
  const Ran narrow = train_on(*made(at::kFloat), {}), wide = train_on(*made(at::kDouble), {});
  EXPECT_NEAR(narrow.loss.item<double>(), wide.loss.item<double>(), 1e-5);
  for (const auto& [name, gradient] : wide.gradients)
    EXPECT_LT(relative(narrow.gradients.at(name), gradient), 1e-4) << name;
}

TEST(Reversible, AnyPartOfTheLossReachesTheStackAlone) {
  Size size = tiny_size();
  size.depth = 3;
  const at::TensorOptions like = at::TensorOptions().dtype(at::kDouble);
  for (const char* recipe : {"rope", "transformer_vq", "compressive", "gru"}) {
    const auto model = Model::make(reversible(recipe, "recomputed"), size, 1, like),
               plain = Model::make(reversible(recipe, "kept"), size, 1, like);
    for (const Of& of : {Of{false, true, false}, Of{true, false, false}, Of{false, false, true}}) {
      SCOPED_TRACE(text(recipe, of.first, of.second, of.losses));
      if (of.losses && std::string(recipe) != "transformer_vq" && std::string(recipe) != "compressive") continue;
      expect_same(train_on(*model, of), train_on(*plain, of), 1e-10);
    }
  }
}

TEST(Reversible, LayersOfOneBranchAndOfThreeGoOnWhereTheLastStopped) {
  Size size = tiny_size();
  const auto model = Model::make(reversible("gau", "kept"), size, 1, at::TensorOptions().dtype(at::kDouble));
  const Batch batch = random_batch(1, 9, 29);
  model->eval();
  const at::NoGradGuard guard;
  Pass pass{batch};
  const Tensor found = model->hidden(pass);
  // By hand: x1 + F_1(x2), then x2 + F_2 of it.
  std::vector<std::shared_ptr<Layer>> layers;
  for (const auto& child : model->named_children()["layers"]->children()) {
    layers.push_back(std::dynamic_pointer_cast<Layer>(child));
  }
  ASSERT_EQ(layers.size(), 2u);
  const auto branch = [&](const Layer& layer, const Tensor& x) {
    return layer.steps()[0].branch->forward(layer.steps()[0].norm_before->forward(x), pass, nullptr);
  };
  const Tensor x = model->named_parameters()["input.table"].index_select(0, batch.tokens[0]).unsqueeze(0);
  const Tensor y1 = x + branch(*layers[0], x), y2 = x + branch(*layers[1], y1);
  const auto norm = std::dynamic_pointer_cast<Norm>(model->named_children()["norm"]);
  EXPECT_LT(difference(found, norm->forward((y1 + y2) / 2)), 1e-12);
}

TEST(Reversible, BackwardTwiceAndInParts) {
  const at::TensorOptions like = at::TensorOptions().dtype(at::kDouble);
  const auto model = Model::make(reversible("rope", "recomputed"), tiny_size(), 1, like);
  const Batch batch = random_batch(2, 12, 29);
  Pass pass{batch};
  const Tensor loss = model->forward(pass).square().mean();
  std::vector<Tensor> weights, last;
  for (const auto& [name, weight] : model->weights()) {
    weights.push_back(weight);
    if (name.rfind("layers.1.branches.1", 0) == 0) last.push_back(weight);
  }
  const auto of = [&](const std::vector<Tensor>& some) { return torch::autograd::grad({loss}, some, {}, true); };
  const auto once = of(weights), part = of(last), again = of(weights);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(once[i].equal(again[i])) << i;
  for (size_t i = 0; i < last.size(); ++i) {
    const auto found =
        std::find_if(weights.begin(), weights.end(), [&](const Tensor& w) { return w.is_same(last[i]); });
    EXPECT_TRUE(part[i].equal(once[static_cast<size_t>(found - weights.begin())])) << i;
  }
}

TEST(Reversible, FrozenLayersBelowAndAbove) {
  const at::TensorOptions like = at::TensorOptions().dtype(at::kDouble);
  for (const char* trained : {"layers.0", "layers.1", "layers.2", "input"}) {
    Size size = tiny_size();
    size.depth = 3;
    const auto model = Model::make(reversible("rope", "recomputed"), size, 1, like),
               plain = Model::make(reversible("rope", "kept"), size, 1, like);
    for (const auto& each : {model, plain})
      for (const auto& [name, weight] : each->weights()) {
        Tensor(weight).set_requires_grad(name.rfind(trained, 0) == 0);
      }
    expect_same(train_on(*model, {}), train_on(*plain, {}), 1e-10);
  }
}

/// What the allocator has handed out on this thread, and the most of it at once.
class Ledger : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    peak_ = std::max(peak_, held_ += bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held() const { return held_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0, peak_ = 0;
};

/// Bytes that a step holds between forward and backward, and at most, without parameters and gradients.
std::pair<double, double> step_memory(int64_t depth, const std::string& activations) {
  Size size = tiny_size();
  size.depth = depth, size.dropout = 0.1, size.width = 64;
  const auto model = Model::make(reversible("rope", activations), size);
  const Batch batch = random_batch(1, 512, 29);
  std::pair<double, double> out;
  for (int round = 0; round < 2; ++round) {  // the first makes the gradients
    const auto ledger = std::make_shared<Ledger>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, ledger);
    Pass pass{batch};
    pass.seed = 3;
    const Tensor loss = model->hidden(pass).square().mean();
    out.first = static_cast<double>(ledger->held());
    loss.backward();
    out.second = static_cast<double>(ledger->peak());
  }
  return out;
}

TEST(Reversible, HoldsTheActivationsOfOneLayer) {
  const auto few = step_memory(4, "recomputed"), many = step_memory(24, "recomputed");
  EXPECT_LT(many.first / few.first, 1.15) << few.first << " " << many.first;
  EXPECT_LT(many.second / few.second, 1.15) << few.second << " " << many.second;
  EXPECT_GT(step_memory(24, "kept").second / few.second, 4);
}

TEST(Reversible, ComputesTwiceInTheSameTypes) {
  const auto loss_and_gradient = [](const char* activations) {
    const auto model = Model::make(reversible("rope", activations), tiny_size());
    const Batch batch = random_batch(2, 24, 29);
    Pass pass{batch};
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const Tensor loss = model->forward(pass).to(at::kFloat).square().mean();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    loss.backward();
    return std::pair(loss.item<double>(), model->weights()[3].second.grad().clone());
  };
  const auto [loss, gradient] = loss_and_gradient("recomputed");
  const auto [plain_loss, plain] = loss_and_gradient("kept");
  EXPECT_EQ(loss, plain_loss);
  EXPECT_LT(((gradient - plain).norm() / plain.norm()).item<double>(), 0.01);
}

TEST(Reversible, RefusesWhatItCannotUndo) {
  const auto message = [](const std::string& name, const std::string& set) {
    Recipe recipe = reversible(name, "recomputed");
    if (!set.empty()) override_recipe(recipe, set);
    try {
      Model::make(recipe, tiny_size());
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message("vanilla_decoder", "").find("[layers.branches.0.norm] of layer 0 (attention) expected \"before\""),
            std::string::npos)
      << message("vanilla_decoder", "");
  EXPECT_NE(message("rope", "layers.0.norm=both").find("a norm after the sum"), std::string::npos);
  EXPECT_EQ(message("rope", ""), "no error");
  EXPECT_EQ(message("rope", "layers.0.norm=none"), "no error");
}

TEST(Reversible, AnyRecipeTakesItByASetting) {
  for (const char* set : {"depth.kind=reversible", "depth=reversible"}) {
    Recipe recipe = load_recipe("window");
    override_recipe(recipe, set);
    const auto found = Model::make(recipe, tiny_size())->named_children();
    EXPECT_TRUE(std::dynamic_pointer_cast<Reversible>(found["depth"])) << set;
  }
}

TEST(Reversible, AnyLengthFirstLongThenShortThenLong) {
  const auto model = Model::make(reversible("rope", "recomputed"), tiny_size());
  const Batch whole = random_batch(2, 65, 29);
  const Tensor first = model->score(whole);
  for (const int64_t length : {1, 2, 16, 32, 48, 63, 65}) {
    const Tensor found = model->score({whole.tokens.narrow(1, 0, length), {}});
    EXPECT_LT(difference(found, first.narrow(1, 0, length)), 1e-5) << length;
  }
  EXPECT_TRUE(model->score(whole).equal(first));
  EXPECT_EQ(model->score({whole.tokens.narrow(1, 0, 0), {}}).size(1), 0);
}

}  // namespace
}  // namespace kinfolk
