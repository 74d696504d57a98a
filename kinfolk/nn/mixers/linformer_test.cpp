#include "kinfolk/nn/mixers/linformer.h"

#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/length/linear.h"
#include "kinfolk/nn/length/windows.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/nn/testing.h"
#include "kinfolk/reference/golden.h"
#include "kinfolk/reference/linformer.h"

namespace kinfolk {
namespace {

std::shared_ptr<Linformer> make(const std::string& options, int64_t width, int64_t heads, int64_t longest,
                                at::ScalarType type = at::kDouble) {
  Context context;
  context.size.width = width, context.size.heads = heads, context.size.context = longest;
  context.like = at::TensorOptions().dtype(type);
  context.generator = at::detail::createCPUGenerator(7);
  Value table = parse_toml(options, "options");
  table.set("kind", "linformer");
  return std::dynamic_pointer_cast<Linformer>(registry<Branch>().create(Spec(table), context, "linformer"));
}

/// The call of a branch: x [B, L, D], with padding and documents.
Tensor call(Linformer& branch, const Tensor& x, const Tensor& valid = {}, const Tensor& document = {},
            uint64_t seed = 0) {
  const Batch batch;
  Pass pass{batch};
  pass.valid = valid, pass.document = document, pass.seed = seed;
  return branch.forward(x, pass, nullptr);
}

std::map<std::string, Tensor> parameters_of(const LengthProjection& projection) {
  std::map<std::string, Tensor> out;
  for (const auto& item : projection.named_parameters()) out[item.key()] = item.value();
  return out;
}

TEST(Linformer, Golden) {
  const std::map<std::string, std::string> kinds{
      {"linear", "linear"}, {"mean", "mean_pool"}, {"max", "max_pool"}, {"conv", "conv"}};
  for (const auto& c : golden::cases("attention/linformer")) {
    for (const auto type : {at::kDouble, at::kFloat}) {
      const Tensor q = c.at("in.q").to(type).requires_grad_(), k = c.at("in.k").to(type).requires_grad_(),
                   v = c.at("in.v").to(type).requires_grad_();
      const int64_t heads = q.size(1), d = q.size(3);
      const auto kind = c.config.at("kind").get<std::string>();
      const bool linear = kind == "linear", shared = c.config.at("share_kv").get<bool>();
      std::string project = text("{ kind = \"", kinds.at(kind), "\", ");
      project += linear ? text("rank = ", c.at("param.e").size(1),
                               ", per_head = ", c.at("param.e").size(0) > 1 ? "true" : "false", " }")
                        : text("ratio = ", c.config.at("ratio").get<int64_t>(), " }");
      const auto branch = make(text("project = ", project, "\nshare_kv = ", shared ? "true" : "false"), heads * d,
                               heads, linear ? c.at("param.e").size(2) : q.size(2), type);
      std::vector<std::pair<std::string, Tensor>> learned;
      const auto set = [&](const std::string& theirs, const LengthProjection& ours, const char* name) {
        const at::NoGradGuard guard;
        const Tensor to = parameters_of(ours).at(name);
        Tensor(to).copy_(c.at("param." + theirs));
        learned.emplace_back(theirs, to);
      };
      if (linear) {
        set("e", *branch->e, "weight");
        if (!shared) set("f", *branch->f, "weight");
      } else if (kind == "conv") {
        set("conv_k", *branch->e, "weight"), set("bias_k", *branch->e, "bias");
        set("conv_v", *branch->f, "weight"), set("bias_v", *branch->f, "bias");
      }
      EXPECT_EQ(branch->f == branch->e, shared);
      const Tensor out = branch->read(q, k, v);
      golden::expect_close(out, c.at("out.o"), c, "o");
      (out * c.at("cot.o")).sum().backward();
      golden::expect_gradient(q.grad(), c.at("grad.in.q"), c, "q");
      golden::expect_gradient(k.grad(), c.at("grad.in.k"), c, "k");
      golden::expect_gradient(v.grad(), c.at("grad.in.v"), c, "v");
      for (const auto& [name, weight] : learned) {
        golden::expect_gradient(weight.grad(), c.at("grad.param." + name), c, name);
      }
    }
  }
}

const std::vector<std::string> kWays{
    "project = { kind = \"linear\", rank = 3 }",
    "project = { kind = \"linear\", rank = 3 }\nshare_kv = true",
    "project = { kind = \"linear\", rank = 3 }\nbias = true",
    "project = { kind = \"linear\", rank = 3, per_head = true }",
    "project = { kind = \"linear\", rank = 4, per_head = true }\nproject_values = { kind = \"linear\", rank = 4 }",
    "project = { kind = \"mean_pool\", ratio = 4 }",
    "project = { kind = \"max_pool\", ratio = 3 }",
    "project = { kind = \"conv\", ratio = 4 }",
    "project = { kind = \"conv\", ratio = 5 }\nshare_kv = true\nbias = true",
    "project = { kind = \"mean_pool\", ratio = 3 }\nproject_values = { kind = \"conv\", ratio = 3 }"};

reference::LengthReduction reduction(const LengthProjection& ours, int64_t head) {
  const auto own = parameters_of(ours);
  if (const auto* linear = dynamic_cast<const LinearLength*>(&ours)) {
    return {"linear", linear->weight[linear->weight.size(0) > 1 ? head : 0].detach(), 1, {}, {}};
  }
  int64_t ratio = 1;  // as it shows in the number of slots
  while (ours.slots(ratio + 1) == 1) ++ratio;
  if (const auto* conv = dynamic_cast<const ConvLength*>(&ours)) {
    return {"conv", {}, ratio, conv->weight.detach(), conv->bias.detach()};
  }
  return {dynamic_cast<const MeanLength*>(&ours) ? "mean" : "max", {}, ratio, {}, {}};
}

/// The whole branch by the loops, of one sequence x [n, D].
Tensor by_loops(const Linformer& branch, const Tensor& x, int64_t heads) {
  const auto through = [](const Tensor& in, const Linear& linear) {
    const Tensor y = in.mm(linear.weight.detach().t());
    return linear.bias.defined() ? y + linear.bias.detach() : y;
  };
  const Tensor q = through(x, *branch.q), k = through(x, *branch.k), v = through(x, *branch.v);
  const int64_t d = x.size(1) / heads;
  std::vector<Tensor> out;
  for (int64_t h = 0; h < heads; ++h) {
    const auto part = [&](const Tensor& t) { return t.narrow(1, h * d, d); };
    out.push_back(reference::linformer(part(q), part(k), part(v), reduction(*branch.e, h), reduction(*branch.f, h)));
  }
  return through(at::cat(out, 1), *branch.out);
}

TEST(Linformer, EqualsTheLoopsAtEveryLengthAndWithPaddingAndDocuments) {
  at::manual_seed(3);
  const int64_t longest = 13, heads = 2, width = 8;
  for (const auto& way : kWays) {
    SCOPED_TRACE(way);
    const auto branch = make(way, width, heads, longest);
    const at::NoGradGuard guard;
    for (const auto& [name, p] : branch->named_parameters().pairs())
      if (name.find("bias") != std::string::npos) Tensor(p).normal_();
    for (const int64_t n : {13, 1, 2, 7, 12, 13}) {  // one object at many lengths
      const Tensor x = at::randn({2, n, width}, at::kDouble), y = call(*branch, x);
      for (int64_t b = 0; b < 2; ++b) EXPECT_LT(difference(y[b], by_loops(*branch, x[b], heads)), 1e-12) << n;
    }
    // Padding before, between and after, more of it than the context holds; one lane has none but padding.
    Tensor valid = at::zeros({3, 20}, at::kBool);
    for (const int64_t at : {1, 2, 3, 5, 8, 9, 13, 17}) valid[0][at] = true;
    valid[1].slice(0, 4, 17).fill_(true);
    const Tensor x = at::randn({3, 20, width}, at::kDouble);
    const Tensor y = call(*branch, x, valid);
    const Tensor other = call(*branch, x.masked_fill(valid.logical_not().unsqueeze(-1), NAN), valid);
    EXPECT_TRUE(y.equal(other)) << "what padding holds must not matter";
    EXPECT_EQ(y.masked_fill(valid.unsqueeze(-1), 0).abs().sum().item<double>(), 0);
    for (int64_t b = 0; b < 2; ++b) {
      const Tensor rows = valid[b].nonzero().squeeze(1);
      EXPECT_LT(difference(y[b].index_select(0, rows), by_loops(*branch, x[b].index_select(0, rows), heads)), 1e-12);
    }
    EXPECT_EQ(y[2].abs().sum().item<double>(), 0);
    // Two documents: what stands in one does not move the other.
    const Tensor document = at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, at::kLong).unsqueeze(0);
    const Tensor a = at::randn({1, 11, width}, at::kDouble);
    Tensor b = a.clone();
    b.slice(1, 5).normal_();
    const Tensor ya = call(*branch, a, {}, document), yb = call(*branch, b, {}, document);
    EXPECT_TRUE(ya.slice(1, 0, 5).equal(yb.slice(1, 0, 5)));
    EXPECT_GT(difference(ya.slice(1, 5), yb.slice(1, 5)), 1e-3);
    EXPECT_LT(difference(ya[0].slice(0, 0, 5), by_loops(*branch, a[0].slice(0, 0, 5), heads)), 1e-12);
    b = a.clone();
    b.slice(1, 0, 5).normal_();
    EXPECT_TRUE(call(*branch, b, {}, document).slice(1, 5).equal(ya.slice(1, 5)));
  }
}

TEST(Linformer, GradientsEqualFiniteDifferences) {
  at::manual_seed(5);
  for (const auto& way : kWays) {
    SCOPED_TRACE(way);
    const auto branch = make(way, 4, 2, 9);
    Tensor valid = at::ones({2, 7}, at::kBool);
    valid[1][0] = valid[1][3] = false;
    const Tensor x = at::randn({2, 7, 4}, at::kDouble).requires_grad_(), cot = at::randn({2, 7, 4}, at::kDouble);
    const auto number = [&] { return (call(*branch, x, valid) * cot).sum(); };
    std::vector<Tensor> all = branch->parameters();
    if (branch->f != branch->e)
      EXPECT_EQ(branch->named_parameters().contains("f.weight"), branch->f->parameters().size() > 0);
    all.push_back(x);
    const auto got = torch::autograd::grad({number()}, all, {}, false, false, true);
    const at::NoGradGuard guard;
    for (size_t i = 0; i < all.size(); ++i) {
      Tensor t = all[i];
      const Tensor direction = at::randn_like(t), before = t.clone();
      const auto moved = [&](double step) {
        t.copy_(before + direction * step);
        const double value = number().item<double>();
        t.copy_(before);
        return value;
      };
      const double h = 1e-5, want = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
      EXPECT_NEAR((got[i] * direction).sum().item<double>(), want, 1e-8 * std::max(1.0, std::abs(want))) << i;
    }
  }
}

TEST(Linformer, LayersShareOneMatrixByName) {
  Recipe recipe = load_recipe("linformer");
  override_recipe(recipe, "layers.0.branches.0.project={ kind = \"linear\", rank = 6, share = \"E\" }");
  const auto model = Model::make(recipe, tiny_size());
  int64_t matrices = 0;
  for (const auto& [name, weight] : model->weights())
    if (weight.dim() == 3) {
      ++matrices;
      EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{1, 6, 96})) << name;
    }
  EXPECT_EQ(matrices, 1) << "one for all layers, keys and values";
  EXPECT_EQ(tiny("linformer")->weights().size(), model->weights().size() + 3);
}

TEST(Linformer, ARankForEachLayer) {
  Recipe recipe = load_recipe("linformer");
  Value::Array groups;
  for (const int64_t rank : {12, 4}) {
    Value group = (*recipe.tree.find("layers")->as<Value::Array>())[0];
    group.set("repeat", int64_t{1});
    Value& branch = (*group.find("branches")->as<Value::Array>())[0];
    branch.set("project", parse_toml(text("kind = \"linear\"\nrank = ", rank), "rank"));
    groups.push_back(group);
  }
  recipe.tree.set("layers", Value(groups));
  const auto model = Model::make(recipe, tiny_size());
  const auto named = model->named_parameters();
  EXPECT_EQ(named["layers.0.branches.0.e.weight"].size(1), 12);
  EXPECT_EQ(named["layers.1.branches.0.f.weight"].size(1), 4);
  EXPECT_EQ(model->score(random_batch(1, 33, 29)).size(1), 33);
}

TEST(Linformer, RefusesACausalFormAStateAndLongInput) {
  const auto message = [](const auto& f) {
    try {
      f();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto made = [&](const std::string& options) { return message([&] { make(options, 8, 2, 12); }); };
  EXPECT_NE(made("causal = true").find("[linformer.causal] expected false: a projected key is a sum over all rows"),
            std::string::npos)
      << made("causal = true");
  EXPECT_EQ(made("causal = false"), "no error");
  EXPECT_NE(made("share_kv = true\nproject_values = \"conv\"").find("beside share_kv"), std::string::npos);
  EXPECT_NE(made("project = { kind = \"mean_pool\", ratio = 2 }\nproject_values = { kind = \"conv\", ratio = 3 }")
                .find("expected as many slots"),
            std::string::npos);
  const auto branch = make("", 8, 2, 12);
  const auto model = tiny("linformer");
  EXPECT_FALSE(model->traits().causal || model->traits().streams);
  EXPECT_EQ(model->traits().context, 96);
  EXPECT_NE(message([&] {
              call(*branch, at::zeros({1, 13, 8}, at::kDouble));
            }).find("at most 12 tokens"),
            std::string::npos);
  const Batch batch;
  Pass pass{batch};
  State state;
  EXPECT_NE(message([&] {
              branch->forward(at::zeros({1, 3, 8}, at::kDouble), pass, &state);
            }).find("found a state"),
            std::string::npos);
  EXPECT_EQ(call(*make("project = { kind = \"mean_pool\" }", 8, 2, 12), at::randn({1, 40, 8}, at::kDouble)).size(1), 40)
      << "windows have no limit";
}

TEST(Linformer, EvaluationRepeatsWhateverWasReadBetween) {
  const auto model = tiny("linformer", 0.1);
  const Batch whole = random_batch(2, 90, 29), brief = random_batch(3, 5, 29);
  const Tensor first = model->score(whole);
  model->score(brief);
  Pass pass{whole};
  pass.seed = 3;
  model->forward(pass);
  EXPECT_TRUE(model->score(whole).equal(first));
  EXPECT_NE(model->explain().find("16 slots of at most 96 tokens"), std::string::npos) << model->explain();
}

TEST(Linformer, WorkGrowsWithTheLengthAlone) {
  const auto branch = make("project = { kind = \"linear\", rank = 16 }", 64, 4, 8192);
  EXPECT_NEAR(branch->flops(8192, 0) / branch->flops(4096, 0), 2, 0.02);
}

}  // namespace
}  // namespace kinfolk
