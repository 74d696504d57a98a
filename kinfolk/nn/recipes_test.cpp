// Laws that every recipe keeps.
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

struct Recipes : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Recipes, testing::ValuesIn(recipe_names()), [](const auto& info) { return info.param; });

TEST_P(Recipes, SaysWhatItIsAndWhereItComesFrom) {
  const Recipe recipe = load_recipe(GetParam());
  for (const char* key : {"about", "article"}) {
    const Value* words = recipe.tree.find(key);
    ASSERT_TRUE(words && words->as<std::string>()) << key;
    EXPECT_GT(words->as<std::string>()->size(), 10u) << key;
  }
}

TEST_P(Recipes, BuildsAtEverySize) {
  for (const char* size : {"tiny", "small", "base"}) {
    const auto model = Model::make(load_recipe(GetParam()), load_size(size), 1, at::TensorOptions().device(at::kMeta));
    EXPECT_GT(model->parameter_count(), 100'000) << size;
  }
}

TEST_P(Recipes, EveryParameterGetsAGradient) {
  const auto model = tiny(GetParam());
  std::map<std::string, Tensor> losses;
  // A length beyond the windows and segments, every token of the vocabulary as an input and a target.
  const Batch batch = random_batch(2, model->size().context, model->size().vocabulary);
  model->head().remember(at::randn({40, model->size().width}), batch.fact("target").flatten().narrow(0, 0, 40));
  Pass pass{batch};
  pass.losses = &losses;
  const Tensor scores = model->forward(pass);  // [B, L, V]
  Tensor sum = at::cross_entropy_loss(scores.flatten(0, 1), batch.fact("target").flatten());
  for (const auto& [name, value] : losses) sum = sum + value;
  sum.backward();
  int64_t with = 0;
  for (const auto& [name, tensor] : model->weights()) {
    EXPECT_TRUE(tensor.grad().defined() && tensor.grad().abs().max().item<double>() > 0) << name;
    with += tensor.numel();
  }
  EXPECT_EQ(with, model->parameter_count());
}

TEST_P(Recipes, MeetsABudgetWithinOnePercent) {
  const Recipe recipe = load_recipe(GetParam());
  for (const auto& [name, budget] :
       std::map<std::string, int64_t>{{"tiny", 500'000}, {"small", 3'000'000}, {"base", 10'000'000}}) {
    const Size size = solve_budget(recipe, load_size(name), budget);
    EXPECT_EQ(size.width % (8 * size.heads), 0);
    const auto count = Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta))->parameter_count();
    EXPECT_LE(std::abs(static_cast<double>(count) / static_cast<double>(budget) - 1), 0.01)
        << count << " of " << budget;
  }
}

TEST_P(Recipes, CheckpointingChangesNoGradient) {
  const auto model = tiny(GetParam(), 0.1);
  const auto gradients = [&](bool checkpointing) {
    model->checkpointing = checkpointing;
    for (const auto& [name, tensor] : model->weights()) tensor.mutable_grad() = Tensor();
    Tensor sum = at::zeros({});
    std::map<std::string, Tensor> losses;
    std::vector<std::function<void()>> updates;
    State state = model->start(2);
    const bool streams = model->traits().streams;
    for (const int64_t seed : {1, 2}) {  // two calls: the state passes through
      const Batch batch = random_batch(2, 40, model->size().vocabulary, seed);
      Pass pass{batch};
      pass.seed = 7, pass.losses = &losses, pass.updates = &updates;
      if (streams) pass.state = &state;
      sum = sum + at::cross_entropy_loss(model->forward(pass).flatten(0, 1), batch.fact("target").flatten());
    }
    for (const auto& [name, value] : losses) sum = sum + value;
    sum.backward();
    std::map<std::string, Tensor> out{{"the loss", sum.detach()}};
    for (const auto& [name, tensor] : model->weights()) out[name] = tensor.grad();
    return out;
  };
  const auto plain = gradients(false), again = gradients(true);
  ASSERT_EQ(plain.size(), again.size());
  for (const auto& [name, gradient] : plain) EXPECT_LT(difference(gradient, again.at(name)), 1e-5) << name;
}

TEST_P(Recipes, PaddingAnywhereChangesNothing) {
  const auto model = tiny(GetParam());
  model->eval();
  const Batch whole = random_batch(1, 24, model->size().vocabulary);
  const Tensor expected = model->score(whole);  // [1, 24, V]
  // The same tokens with gaps of padding before, between and after; what padding holds must not matter.
  std::vector<int64_t> places;
  for (int64_t i = 0; i < 24; ++i) places.push_back(3 + i + (i > 5) * 2 + (i > 17) * 4);
  const Tensor at_places = at::tensor(places);
  Batch padded;
  padded.tokens = at::full({1, 36}, 9, at::kLong).index_copy(1, at_places, whole.tokens);
  padded.facts["valid"] = at::zeros({1, 36}, at::kBool).index_fill(1, at_places, true);
  const Tensor found = model->score(padded);
  EXPECT_LT(difference(found.index_select(1, at_places), expected), 2e-5);
  EXPECT_EQ(found.masked_fill(padded.facts["valid"].unsqueeze(-1), 0).abs().max().item<double>(), 0);
  if (!model->traits().streams) return;
  State a = model->start(1), b = model->start(1);
  model->score(whole, &a);
  model->score(padded, &b);
  const Batch next = random_batch(1, 5, model->size().vocabulary, 3);
  EXPECT_LT(difference(model->score(next, &a), model->score(next, &b)), 2e-5);
}

TEST_P(Recipes, DocumentsDoNotSeeEachOther) {
  const auto model = tiny(GetParam());
  if (!model->traits().relative) GTEST_SKIP() << "absolute positions: a document's start shifts what follows";
  const Batch first = random_batch(1, 20, model->size().vocabulary, 1),
              second = random_batch(1, 30, model->size().vocabulary, 2);
  Batch joined;
  joined.tokens = at::cat({first.tokens, second.tokens}, 1);
  joined.facts["segment"] = at::cat({at::full({1, 20}, 4, at::kLong), at::full({1, 30}, 2, at::kLong)}, 1);
  const Tensor found = model->score(joined).slice(1, 20);
  EXPECT_LT(difference(found, model->score(second)), 2e-5);
}

TEST_P(Recipes, SplitsAgree) {
  const auto model = tiny(GetParam());
  if (!model->traits().streams) GTEST_SKIP() << model->traits().why_not;
  const Batch whole = random_batch(2, 60, model->size().vocabulary);
  const Tensor expected = model->score(whole);
  State state = model->start(2);
  std::vector<Tensor> parts;
  for (const auto& [from, to] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 20}, {20, 20}, {20, 21}, {21, 60}}) {
    Batch part;
    part.tokens = whole.tokens.slice(1, from, to);
    parts.push_back(model->score(part, &state));
  }
  EXPECT_LT(difference(at::cat(parts, 1), expected), 2e-5);
}

TEST_P(Recipes, ExplainsItself) {
  Size size = load_size("tiny");
  size.context = 32;
  const auto model = Model::make(load_recipe(GetParam()), size);
  const std::string words = model->explain();
  EXPECT_NE(words.find(std::to_string(model->parameter_count())), std::string::npos) << words;
  const char* state = model->traits().streams ? "bytes at 0 tokens" : "does not stream";
  EXPECT_NE(words.find(state), std::string::npos) << words;
}

}  // namespace
}  // namespace kinfolk
