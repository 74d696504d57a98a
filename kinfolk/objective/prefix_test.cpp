#include "kinfolk/objective/prefix.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"
#include "kinfolk/objective/causal.h"

namespace kinfolk {
namespace {

Loss loss_of(Model& model, const Batch& batch, const Prefix::Options& options = {}, uint64_t seed = 1) {
  Pass pass{batch};
  pass.seed = seed;
  return Prefix(options).loss(model, pass);
}

/// -log p(target) of every position of one lane, by the whole matrix of scores.
Tensor by_position(Model& model, const Batch& batch) {
  const Tensor p = model.score(batch).to(at::kDouble).log_softmax(-1);
  return -p.gather(-1, batch.fact("target").unsqueeze(-1)).squeeze(-1);  // [B, L]
}

TEST(Prefix, OnlyTokensAfterThePrefixAreAskedFor) {
  const auto model = tiny("prefix_lm");
  Batch batch = random_batch(3, 9, 29);
  batch.facts["prefix"] = at::tensor({0, 1, 6}).to(at::kLong);
  const Loss loss = loss_of(*model, batch);
  // At t the target is token t + 1. Of a prefix of 6 token 6 is the first that is asked for, at t = 5.
  EXPECT_EQ(loss.count, 9 + 9 + 4);
  const Tensor each = by_position(*model, batch);
  const double expected = (each[0].sum() + each[1].sum() + each[2].slice(0, 5).sum()).item<double>();
  EXPECT_NEAR(loss.sum.item<double>(), expected, 1e-4);
}

TEST(Prefix, NothingThatIsAskedForCanBeSeen) {
  // p(token t + 1 at t) must not change with tokens after t, wherever it counts; before, it does.
  const auto model = tiny("prefix_lm");
  Batch batch = random_batch(1, 12, 29);
  batch.facts["prefix"] = at::full({1}, 7, at::kLong);
  const Tensor before = model->score(batch);
  bool saw = false;
  for (int64_t t = 0; t + 1 < 12; ++t) {
    Batch changed = batch;
    changed.tokens = batch.tokens.clone();
    changed.tokens.slice(1, t + 1).add_(1).remainder_(29);
    const Tensor after = model->score(changed);
    if (t >= 6) {
      EXPECT_LT(difference(after[0][t], before[0][t]), 1e-6) << t;
    } else {
      saw = saw || difference(after[0][t], before[0][t]) > 1e-3;
    }
  }
  EXPECT_TRUE(saw) << "the prefix is seen in both directions";
}

TEST(Prefix, PositionsCountValidTokensOnly) {
  const auto model = tiny("prefix_lm");
  Batch padded = random_batch(1, 10, 29), bare = padded;
  padded.facts["valid"] = at::ones({1, 10}, at::kBool);
  padded.facts["valid"][0].slice(0, 0, 3).fill_(false);
  bare.tokens = padded.tokens.slice(1, 3);
  bare.facts["target"] = padded.facts["target"].slice(1, 3);
  padded.facts["prefix"] = bare.facts["prefix"] = at::full({1}, 4, at::kLong);
  const Loss a = loss_of(*model, padded), b = loss_of(*model, bare);
  EXPECT_EQ(a.count, 4);
  EXPECT_EQ(b.count, 4);
  EXPECT_NEAR(a.sum.item<double>(), b.sum.item<double>(), 1e-4);
  // Drawn ones leave a token to ask for, in padded lanes too.
  padded.facts.erase("prefix");
  padded.facts["valid"][0].slice(0, 0, 8).fill_(false);
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_GE(loss_of(*model, padded, {}, seed).count, 1);
}

TEST(Prefix, LengthsComeFromTheSeed) {
  const Tensor tokens = at::full({4000}, 101, at::kLong);
  const Prefix uniform({});
  const Tensor drawn = uniform.draw(tokens, 5);
  EXPECT_TRUE(at::equal(drawn, uniform.draw(tokens, 5)));
  EXPECT_FALSE(at::equal(drawn, uniform.draw(tokens, 6)));
  EXPECT_EQ(drawn.min().item<int64_t>(), 1);
  EXPECT_EQ(drawn.max().item<int64_t>(), 100);
  EXPECT_NEAR(drawn.to(at::kDouble).mean().item<double>(), 50.5, 2);
  Prefix::Options options;
  options.longest = 0.25, options.none = 0.5;
  const Tensor half = Prefix(options).draw(tokens, 5);
  EXPECT_NEAR(half.eq(0).to(at::kDouble).mean().item<double>(), 0.5, 0.03);
  EXPECT_EQ(half.max().item<int64_t>(), 25);
  options.longest = 0;
  EXPECT_EQ(Prefix(options).draw(tokens, 5).max().item<int64_t>(), 0);
  EXPECT_EQ(uniform.draw(at::tensor({0, 1, 2}).to(at::kLong), 5).max().item<int64_t>(), 1);
  EXPECT_EQ(uniform.draw(at::tensor({0, 1}).to(at::kLong), 5).max().item<int64_t>(), 0);
}

TEST(Prefix, WithoutAPrefixItIsTheCausalLoss) {
  const auto model = tiny("prefix_lm");
  const Batch batch = random_batch(2, 9, 29);
  Prefix::Options options;
  options.none = 1;
  const Loss mine = loss_of(*model, batch, options);
  Batch without = batch;
  without.facts["prefix"] = at::zeros({2}, at::kLong);
  Pass pass{without};
  const Tensor target = target_of(batch);  // [2, 9]
  const Tensor log_p = model->forward(pass).log_softmax(-1);
  const Tensor want = -log_p.gather(-1, target.clamp_min(0).unsqueeze(-1)).squeeze(-1).masked_fill(target < 0, 0).sum();
  EXPECT_EQ(mine.count, target.ge(0).sum().item<int64_t>());
  EXPECT_NEAR(mine.sum.item<double>(), want.item<double>(), 1e-5);
}

TEST(Prefix, EvaluationDrawsNoneAndKeepsOneThatIsGiven) {
  const auto model = tiny("prefix_lm");
  Batch batch = random_batch(2, 9, 29);
  EXPECT_LT(loss_of(*model, batch).count, 18);
  model->eval();
  EXPECT_EQ(loss_of(*model, batch).count, 18);
  batch.facts["prefix"] = at::full({2}, 5, at::kLong);
  EXPECT_EQ(loss_of(*model, batch).count, 10);
}

TEST(Prefix, GradientsAreThoseOfTheFactGivenWithOrWithoutCheckpointing) {
  const auto model = tiny("prefix_lm", 0.2);
  Batch batch = random_batch(2, 9, 29);
  const auto gradients = [&](const Batch& mine, bool checkpointing) {
    model->checkpointing = checkpointing;
    for (const auto& [name, w] : model->weights()) w.mutable_grad() = Tensor();
    loss_of(*model, mine, {}, 11).sum.backward();
    std::vector<Tensor> out;
    for (const auto& [name, w] : model->weights()) out.push_back(w.grad());
    return out;
  };
  const auto drawn = gradients(batch, false), again = gradients(batch, true);
  batch.facts["prefix"] = Prefix({}).draw(at::full({2}, 9, at::kLong), 11);
  const auto given = gradients(batch, false);
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_LT(difference(given[i], drawn[i]), 1e-6) << i;
    EXPECT_LT(difference(again[i], drawn[i]), 1e-5) << i;
  }
}

TEST(Prefix, IsTheRecipesObjective) {
  Recipe recipe = load_recipe("prefix_lm");
  EXPECT_TRUE(std::dynamic_pointer_cast<Prefix>(make_objective(recipe)));
  override_recipe(recipe, "objective={ kind = \"prefix\", longset = 1 }");
  EXPECT_THROW(make_objective(recipe), UsageError);
}

TEST(Prefix, ACausalMemberIsRefused) {
  const auto model = tiny("rope");
  try {
    loss_of(*model, random_batch(1, 5, 29));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected a pattern that reads the fact prefix"), std::string::npos);
  }
}

}  // namespace
}  // namespace kinfolk
