#include "kinfolk/nn/model.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

template <class F>
std::string message(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// A branch that notes what the pass holds.
struct Spy : Branch {
  struct Options {
    template <class Visit>
    void fields(Visit&&) {}
  };
  Spy(const Options&, const Context&) {}
  Traits traits() const override {
    Traits traits;
    traits.bounded = traits.relative = true;
    return traits;
  }
  double flops(int64_t length, int64_t from) const override { return static_cast<double>(length * (from + 1)); }
  Tensor forward(const Tensor& x, Pass& pass, State*) override {
    position = pass.position, valid = pass.valid, document = pass.document, first = pass.first;
    return at::zeros_like(x);
  }
  Tensor position, valid, document, first;
};

struct Prepared : testing::Test {
  Prepared() {
    if (!registry<Branch>().has("spy")) registry<Branch>().add<Spy>("spy", "for this test");
    Recipe recipe{"spy", parse_toml("[[layers]]\n[[layers.branches]]\nkind = \"spy\"\nnorm = \"none\"", "t.toml")};
    Size size = tiny_size();
    size.depth = 1;
    model = Model::make(recipe, size);
    spy = dynamic_cast<Spy*>(const_cast<Branch*>(first_branch()));
  }
  const Branch* first_branch() const {
    for (const auto& item : model->named_modules())
      if (const auto* found = dynamic_cast<const Spy*>(item.value().get())) return found;
    return nullptr;
  }
  void run(const std::vector<int64_t>& segment, const std::vector<int64_t>& valid, State* state = nullptr,
           int64_t lanes = 1) {
    const auto length = static_cast<int64_t>(std::max(segment.size(), valid.size())) / lanes;
    Batch batch;
    batch.tokens = at::ones({lanes, length}, at::kLong);
    if (!segment.empty()) batch.facts["segment"] = at::tensor(segment).reshape({lanes, length});
    if (!valid.empty()) batch.facts["valid"] = at::tensor(valid).reshape({lanes, length}).to(at::kBool);
    model->score(batch, state);
  }
  static std::vector<int64_t> list(const Tensor& t) {
    const Tensor flat = t.to(at::kLong).contiguous();
    return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
  }
  std::shared_ptr<Model> model;
  Spy* spy;
  using Numbers = std::vector<int64_t>;
};

TEST_F(Prepared, PositionsCountValidTokens) {
  run({}, {0, 1, 1, 0, 1});
  EXPECT_EQ(list(spy->position), (Numbers{-1, 0, 1, -1, 2}));
  EXPECT_TRUE(spy->valid.defined());
  EXPECT_FALSE(spy->document.defined() || spy->first.defined());
  run({}, {1, 1, 1});
  EXPECT_FALSE(spy->valid.defined());  // all are: nobody has to look
  EXPECT_EQ(list(spy->position), (Numbers{0, 1, 2}));
}

TEST_F(Prepared, PositionsGoOnFromTheState) {
  State state = model->start(2);
  run({}, {1, 1, 0, 0, 0, 0}, &state, 2);
  EXPECT_EQ(list(state.tensors["seen"]), (Numbers{2, 0}));
  run({}, {0, 1, 0, 1, 1, 1}, &state, 2);
  EXPECT_EQ(list(spy->position), (Numbers{-1, 2, -1, 0, 1, 2}));
  EXPECT_EQ(list(state.tensors["seen"]), (Numbers{3, 3}));
}

TEST_F(Prepared, LengthsAreShorthandForValid) {
  Batch batch;
  batch.tokens = at::ones({2, 3}, at::kLong);
  batch.facts["lengths"] = at::tensor({2, 3}, at::kLong);
  model->score(batch);
  EXPECT_EQ(list(spy->valid), (Numbers{1, 1, 0, 1, 1, 1}));
}

TEST_F(Prepared, DocumentsAreCountedAtTheBordersOfSegments) {
  run({5, 5, 7, 7, 5}, {});
  EXPECT_EQ(list(spy->document), (Numbers{0, 0, 1, 1, 2}));  // 5 again is another document
  EXPECT_EQ(list(spy->first), (Numbers{0, 0, 1, 0, 1}));
  run({5, 5, 5}, {});
  EXPECT_FALSE(spy->document.defined() || spy->first.defined());
}

TEST_F(Prepared, BordersLookPastInvalidTokens) {
  // What stands in invalid places is no segment.
  run({9, 5, 8, 5, 8, 6, 1}, {0, 1, 0, 1, 0, 1, 0});
  EXPECT_EQ(list(spy->document), (Numbers{0, 0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(list(spy->first), (Numbers{0, 0, 0, 0, 0, 1, 0}));
}

TEST_F(Prepared, BordersBetweenCallsAreSeen) {
  const Numbers segment{3, 3, 4, 4, 4, 3}, valid{1, 0, 1, 1, 0, 1};
  run(segment, valid);
  const Numbers whole = list(spy->document), first = list(spy->first);
  for (int64_t cut = 0; cut <= 6; ++cut) {
    State state = model->start(1);
    Numbers documents, firsts;
    for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{{0, cut}, {cut, 6}}) {
      if (from == to) continue;
      run(Numbers(segment.begin() + from, segment.begin() + to), Numbers(valid.begin() + from, valid.begin() + to),
          &state);
      for (int64_t i = 0; i < to - from; ++i) {
        documents.push_back(spy->document.defined() ? spy->document[0][i].item<int64_t>() : 0);
        firsts.push_back(spy->first.defined() ? spy->first[0][i].item<bool>() : 0);
      }
    }
    EXPECT_EQ(documents, whole) << cut;
    EXPECT_EQ(firsts, first) << cut;
    EXPECT_EQ(list(state.tensors["document"]), (Numbers{2})) << cut;
    EXPECT_EQ(list(state.tensors["segment"]), (Numbers{3})) << cut;
  }
}

TEST_F(Prepared, ACallWithoutSegmentsStaysInTheLastDocument) {
  State state = model->start(1);
  run({1, 2}, {}, &state);
  run({}, {1, 1}, &state);
  EXPECT_EQ(list(spy->document), (Numbers{1, 1}));
  EXPECT_FALSE(spy->first.defined());
  run({2, 3}, {}, &state);
  EXPECT_EQ(list(spy->document), (Numbers{1, 2}));
}

TEST_F(Prepared, NoTokensAreNoFault) {
  State state = model->start(2);
  Batch batch;
  batch.tokens = at::zeros({2, 0}, at::kLong);
  EXPECT_EQ(model->score(batch, &state).sizes(), at::IntArrayRef({2, 0, 29}));
  EXPECT_EQ(list(state.tensors["seen"]), (Numbers{0, 0}));
}

TEST_F(Prepared, WrongBatchesAreRefused) {
  const auto fault = [&](const Batch& batch, State* state = nullptr) {
    return message([&] { model->score(batch, state); });
  };
  Batch batch;
  batch.tokens = at::ones({2, 3});
  EXPECT_NE(fault(batch).find("[batch] expected tokens int64 [B, L]; found Float [2, 3]"), std::string::npos)
      << fault(batch);
  batch.tokens = at::ones({3}, at::kLong);
  EXPECT_NE(fault(batch).find("[batch] expected tokens int64 [B, L]"), std::string::npos);
  batch.tokens = at::ones({2, 3}, at::kLong);
  batch.facts["valid"] = at::ones({2, 2}, at::kBool);
  EXPECT_NE(fault(batch).find("[batch.valid] expected Bool [2, 3]; found Bool [2, 2]"), std::string::npos);
  batch.facts.clear();
  State three = model->start(3), none;
  EXPECT_NE(fault(batch, &three).find("[state] expected a state of 2 lanes made by this model's start; found one of 3"),
            std::string::npos);
  EXPECT_NE(fault(batch, &none).find("[state] expected a state of 2 lanes"), std::string::npos);
  batch.tokens[1][2] = 29;
  EXPECT_EQ(fault(batch), "[input] expected token ids from 0 to 28; found 29");
  batch.tokens[1][2] = -1;
  EXPECT_EQ(fault(batch), "[input] expected token ids from 0 to 28; found -1");
  batch.facts["valid"] =
      at::ones({2, 3}, at::kBool).index_put_({at::tensor(1), at::tensor(2)}, at::scalar_tensor(false, at::kBool));
  EXPECT_EQ(fault(batch), "no error");  // padding may hold anything
}

TEST(Model, TheSameSeedGivesTheSameModelInEveryType) {
  const auto a = tiny("rope"), b = tiny("rope"), c = tiny("rope", 0, at::kDouble);
  const auto x = a->weights(), y = b->weights(), z = c->weights();
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(at::equal(x[i].second, y[i].second)) << x[i].first;
    EXPECT_TRUE(at::equal(x[i].second, z[i].second.to(at::kFloat))) << x[i].first;
  }
  const auto other = Model::make(load_recipe("rope"), tiny_size(), 2);
  EXPECT_FALSE(at::equal(other->weights()[0].second, x[0].second));
}

TEST(Model, ScoreLeavesNoTraceAndForwardTrains) {
  const auto model = tiny("rope", 0.5);
  const Batch batch = random_batch(2, 12, model->size().vocabulary);
  EXPECT_TRUE(model->is_training());
  const Tensor a = model->score(batch), b = model->score(batch);
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_FALSE(a.requires_grad());
  Pass pass{batch};
  pass.seed = 3;
  const Tensor dropped = model->forward(pass);
  EXPECT_TRUE(dropped.requires_grad());
  EXPECT_FALSE(at::equal(dropped, a));
  Pass again{batch};
  again.seed = 3;
  EXPECT_TRUE(at::equal(model->forward(again), dropped));  // randomness comes from the seed alone
  Pass third{batch};
  third.seed = 4;
  EXPECT_FALSE(at::equal(model->forward(third), dropped));
  Batch wrong = batch;
  wrong.tokens = batch.tokens + 1000;
  EXPECT_THROW(model->score(wrong), Error);
  EXPECT_TRUE(model->is_training());
}

TEST(Model, TheTiedTableIsCountedAndStoredOnce) {
  Recipe recipe = load_recipe("rope");
  const auto tied = Model::make(recipe, tiny_size());
  override_recipe(recipe, "head.tied=false");
  const auto own = Model::make(recipe, tiny_size());
  EXPECT_EQ(own->parameter_count() - tied->parameter_count(), tiny_size().vocabulary * tiny_size().width);
  // Moving the model keeps them tied.
  tied->to(at::kDouble);
  const at::NoGradGuard guard;
  const Batch batch = random_batch(1, 4, tiny_size().vocabulary);
  tied->weights()[0].second.zero_();
  EXPECT_EQ(tied->weights()[0].first, "input.table");
  EXPECT_EQ(tied->score(batch).abs().max().item<double>(), 0);
}

TEST(Model, SharedComponentsAreOneInstance) {
  const std::string shared = "{ kind = \"mlp\", share = \"one\" }";
  const auto build = [&](const std::string& a, const std::string& b) {
    return Model::make(
        {"t",
         parse_toml("layers = [{ branches = [" + a + ", { kind = \"mlp\" }] }, { branches = [" + b + "] }]", "t.toml")},
        tiny_size());
  };
  const auto two = build(shared, shared), three = build("{ kind = \"mlp\" }", "{ kind = \"mlp\" }");
  const Size size = tiny_size();
  EXPECT_EQ(three->parameter_count() - two->parameter_count(), 2 * size.width * size.feed + size.width + size.feed);
  const Batch batch = random_batch(1, 6, size.vocabulary);
  Pass pass{batch};
  two->forward(pass).pow(2).sum().backward();
  std::set<std::string> names;
  for (const auto& [name, weight] : two->weights()) {
    EXPECT_TRUE(weight.grad().defined()) << name;
    names.insert(name);
  }
  EXPECT_TRUE(names.count("layers.0.branches.0.in.weight"));
  EXPECT_FALSE(names.count("layers.1.branches.0.in.weight"));
  // Its gradient is the sum over both places: half the model by hand.
  const auto parameters = two->named_parameters();
  EXPECT_TRUE(parameters["layers.1.branches.0.in.weight"].is_same(parameters["layers.0.branches.0.in.weight"]));

  const std::string fault = message([&] { build(shared, "{ kind = \"mlp\", share = \"one\", ratio = 2 }"); });
  EXPECT_NE(fault.find("[layers.1.branches.0.share] expected the options that one was first used with"),
            std::string::npos)
      << fault;
  EXPECT_NE(message([&] {
              build("{ kind = \"mlp\", share = 3 }", shared);
            }).find("[layers.0.branches.0.share] expected a name; found an integer"),
            std::string::npos);
}

TEST(Model, SharedStepsInsideABranch) {
  const std::string layer = "{ branches = [{ kind = \"attention\", score = [{ kind = \"xl\", share = \"r\" }] }] }";
  const auto model = Model::make({"t", parse_toml("layers = [" + layer + ", " + layer + "]", "t.toml")}, tiny_size());
  int found = 0;
  for (const auto& [name, weight] : model->weights()) found += name.find("score.0.r.weight") != std::string::npos;
  EXPECT_EQ(found, 1);
}

TEST(Model, LearnedPositionsEndWhereTheTableDoes) {
  for (const char* name : {"gpt", "gpt_per_layer"}) {
    const auto model = tiny(name);
    EXPECT_EQ(model->traits().context, 96) << name;
    EXPECT_NE(model->traits().why_not.find("learned positions end at 96 tokens"), std::string::npos) << name;
    EXPECT_NO_THROW(model->score(random_batch(1, 96, 29))) << name;
    const std::string fault = message([&] { model->score(random_batch(1, 97, 29)); });
    EXPECT_NE(
        fault.find("expected positions below 96, the length of the learned table (size.context); found position 96"),
        std::string::npos)
        << fault;
    State state = model->start(1);
    model->score(random_batch(1, 90, 29), &state);
    EXPECT_NE(message([&] { model->score(random_batch(1, 7, 29), &state); }).find("found position 96"),
              std::string::npos)
        << name;
  }
}

TEST(Model, WorkIsAddedUp) {
  const auto model = tiny("window");
  // A window of 16 caps the work of attention: tokens far from the start cost the same each.
  EXPECT_EQ(model->flops(10, 1000), model->flops(10, 5000));
  EXPECT_EQ(model->flops(8, 500) * 2, model->flops(16, 500));
  EXPECT_GT(tiny("rope")->flops(10, 5000), tiny("rope")->flops(10, 1000));
  // Feed-forward and head by hand: 3 matrices of 32 x 32 (48 * 2/3), twice, and the head.
  Recipe recipe{"t", parse_toml("[[layers]]\nrepeat = \"all\"\n[[layers.branches]]\nkind = \"glu\"", "t.toml")};
  EXPECT_EQ(Model::make(recipe, tiny_size())->flops(5), 5 * 2.0 * (2 * 3 * 32 * 32 + 32 * 29));
}

TEST(Model, TraitsAreOfAllParts) {
  EXPECT_TRUE(tiny("rope")->traits().relative);
  EXPECT_FALSE(tiny("rope")->traits().bounded);
  EXPECT_TRUE(tiny("window")->traits().bounded);
  EXPECT_FALSE(tiny("vanilla_decoder")->traits().relative);
  EXPECT_TRUE(tiny("transformer_xl")->traits().carries);
  EXPECT_FALSE(tiny("rope")->traits().carries);
}

TEST(Model, StateBytesStayWhereTheMemberSaysTheyDo) {
  for (const char* name : {"window", "transformer_xl", "linear_attention", "deltanet", "lstm", "rope", "hwfa"}) {
    const auto model = tiny(name);
    State state = model->start(1);
    model->score(random_batch(1, 48, 29), &state);
    const int64_t before = state.bytes();
    model->score(random_batch(1, 48, 29), &state);
    EXPECT_EQ(state.bytes() == before, model->traits().bounded) << name;
  }
}

TEST(Model, LossWeightsAreThoseOfTheRecipe) {
  EXPECT_EQ(tiny("universal")->loss_weights(), (std::map<std::string, double>{{"ponder", 0.01}}));
  EXPECT_TRUE(tiny("rope")->loss_weights().empty());
}

TEST(Model, ExplainNamesPartsCostsAndLimits) {
  Size size = tiny_size();
  size.context = 32, size.depth = 3;
  const std::string words = Model::make(load_recipe("hwfa_rerope"), size)->explain();
  for (const char* part : {"hwfa_rerope: window layers", "article: Su Jianlin", "size: depth = 3 width = 32",
                           "let: window = 64", "at test:", "layers.0-1", "2 equal layers", "layers.2",
                           "pattern = \"causal & window(window)\"", "norm = \"before\"", "state of one lane: ",
                           " bytes at 0 tokens, ", " bytes at 32 tokens, ", " bytes at 320 tokens", "state grows"})
    EXPECT_NE(words.find(part), std::string::npos) << part << "\n" << words;
  EXPECT_NE(Model::make(load_recipe("gpt"), size)->explain().find("none past 32 tokens"), std::string::npos);
}

}  // namespace
}  // namespace kinfolk
