#include "kinfolk/objective/masked.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"
#include "kinfolk/objective/causal.h"

namespace kinfolk {
namespace {

Loss loss_of(Model& model, const Batch& batch, uint64_t seed = 1, const Masked::Options& options = {}) {
  Pass pass{batch};
  pass.seed = seed;
  return Masked(options).loss(model, pass);
}

TEST(Masked, HidesAShareOfTheTokens) {
  const Tensor tokens = at::randint(28, {8, 4096}, at::kLong);
  const auto hidden = Masked({}).hide(tokens, {}, 29, 5);
  const auto share = [](const Tensor& some, const Tensor& of) {
    return some.sum().item<double>() / of.sum().item<double>();
  };
  const Tensor all = at::ones_like(tokens);
  EXPECT_NEAR(share(hidden.asked, all), 0.15, 0.01);
  EXPECT_NEAR(share(hidden.tokens.eq(28).logical_and(hidden.asked), hidden.asked), 0.8, 0.02);  // the last id hides
  // A random token is the same one, or the one that hides, now and then.
  EXPECT_NEAR(share(hidden.tokens.eq(tokens).logical_and(hidden.asked), hidden.asked), 0.1 + 0.1 / 29, 0.02);
  EXPECT_TRUE(at::where(hidden.asked, tokens, hidden.tokens).equal(tokens)) << "nothing else changes";
  const auto again = Masked({}).hide(tokens, {}, 29, 5), other = Masked({}).hide(tokens, {}, 29, 6);
  EXPECT_TRUE(again.tokens.equal(hidden.tokens));
  EXPECT_FALSE(other.asked.equal(hidden.asked));
}

TEST(Masked, AsksForTheHiddenTokensAlone) {
  const auto model = tiny("linformer");
  model->eval();
  Batch batch = random_batch(3, 40, 29);
  batch.facts["valid"] = at::ones({3, 40}, at::kBool);
  batch.facts["valid"][1].slice(0, 11).fill_(false);
  const auto hidden = Masked({}).hide(batch.tokens, batch.fact("valid"), 29, 4);
  Batch given = batch;
  given.tokens = hidden.tokens;
  const Tensor p = model->score(given).to(at::kDouble).log_softmax(-1);
  const Tensor each = -p.gather(-1, batch.tokens.unsqueeze(-1)).squeeze(-1);
  const Loss loss = loss_of(*model, batch, 4);
  EXPECT_EQ(loss.count, hidden.asked.sum().item<int64_t>());
  EXPECT_EQ(hidden.asked[1].slice(0, 11).sum().item<int64_t>(), 0);
  EXPECT_NEAR(loss.sum.item<double>(), each.masked_select(hidden.asked).sum().item<double>(), 1e-4);
  EXPECT_EQ(loss_of(*model, batch, 4).sum.item<double>(), loss.sum.item<double>()) << "evaluation repeats";
  batch.facts.erase("target");
  EXPECT_EQ(loss_of(*model, batch, 4).sum.item<double>(), loss.sum.item<double>()) << "next tokens are not read";
}

TEST(Masked, LearnsToFillIn) {
  // Every token follows from its neighbour.
  const auto model = tiny("linformer");
  Batch batch;
  batch.tokens = (at::arange(48) * 5).remainder(28).expand({4, 48}) + at::arange(4).unsqueeze(1);
  batch.tokens = batch.tokens.remainder(28);
  double first = 0, last = 0;
  std::map<std::string, Tensor> mean, square;
  for (int step = 1; step <= 150; ++step) {
    const Loss loss = loss_of(*model, batch, static_cast<uint64_t>(step));
    last = loss.sum.item<double>() / static_cast<double>(loss.count);
    if (step == 1) first = last;
    (loss.sum / static_cast<double>(loss.count)).backward();
    const at::NoGradGuard guard;
    for (const auto& [name, weight] : model->weights()) {
      Tensor &m = mean[name], &s = square[name];
      if (!m.defined()) m = at::zeros_like(weight), s = at::zeros_like(weight);
      m.mul_(0.9).add_(weight.grad(), 0.1);
      s.mul_(0.99).addcmul_(weight.grad(), weight.grad(), 0.01);
      Tensor(weight).sub_(5e-3 * (m / (1 - std::pow(0.9, step))) / ((s / (1 - std::pow(0.99, step))).sqrt() + 1e-8));
      weight.mutable_grad() = Tensor();
    }
  }
  EXPECT_GT(first, 2.5);
  EXPECT_LT(last, 1.5);
}

TEST(Masked, NoneAskedForGivesZero) {
  const auto model = tiny("linformer");
  Masked::Options options;
  options.share = 0;
  const Loss loss = loss_of(*model, random_batch(2, 9, 29), 1, options);
  EXPECT_EQ(loss.count, 0);
  EXPECT_EQ(loss.sum.item<double>(), 0);
}

TEST(Masked, RefusesWhatDoesNotFit) {
  const auto causal = tiny("rope"), encoder = tiny("linformer");
  const Batch batch = random_batch(1, 9, 29);
  EXPECT_THROW(loss_of(*causal, batch), Error);
  Masked::Options options;
  options.mask = 29;
  EXPECT_THROW(loss_of(*encoder, batch, 1, options), Error);
  options.mask = 0, options.random = 0.6, options.same = 0.6;
  EXPECT_THROW(Masked{options}, UsageError);
  Pass pass{batch};
  try {
    Causal({}).loss(*encoder, pass);
    FAIL() << "a member that sees the future knows the next token";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("found causal, and one that sees them"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace kinfolk
