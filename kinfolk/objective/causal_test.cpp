#include "kinfolk/objective/causal.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/head/knn_lm.h"
#include "kinfolk/nn/head/lm.h"
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

Loss loss_of(Model& model, const Batch& batch, int64_t tile = int64_t{1} << 24) {
  Causal::Options options;
  options.tile = tile;
  Pass pass{batch};
  pass.seed = 1;
  return Causal(options).loss(model, pass);
}

double by_hand(Model& model, const Batch& batch) {
  const Tensor scores = model.score(batch).to(at::kDouble);
  const Tensor target = batch.fact("target");
  double sum = 0;
  for (int64_t b = 0; b < scores.size(0); ++b)
    for (int64_t t = 0; t < scores.size(1); ++t) {
      const int64_t wanted = target[b][t].item<int64_t>();
      if (wanted == -100) continue;
      double largest = -1e300, total = 0;
      for (int64_t v = 0; v < scores.size(2); ++v) largest = std::max(largest, scores[b][t][v].item<double>());
      for (int64_t v = 0; v < scores.size(2); ++v) total += std::exp(scores[b][t][v].item<double>() - largest);
      sum += largest + std::log(total) - scores[b][t][wanted].item<double>();
    }
  return sum;
}

TEST(Causal, SumsOverTheTargetsThatAreSet) {
  const auto model = tiny("rope");
  Batch batch = random_batch(2, 9, 29);
  batch.facts["target"][0][3] = -100;
  batch.facts["target"][1] = -100;
  batch.facts["target"][1][8] = 5;
  const Loss loss = loss_of(*model, batch);
  EXPECT_EQ(loss.count, 9);
  EXPECT_NEAR(loss.sum.item<double>(), by_hand(*model, batch), 1e-4);
  EXPECT_FALSE(loss.auxiliary.defined());
}

TEST(Causal, AHeadThatRetrievesKnowsThePlaceOfEachRow) {
  const auto model = tiny("knn_lm");
  auto& head = dynamic_cast<KnnLm&>(model->head());
  Batch batch = random_batch(2, 40, 29);
  Pass pass{batch};
  {
    at::NoGradGuard guard;
    head.remember(model->hidden(pass).flatten(0, 1), batch.fact("target").flatten());
  }
  const double own = loss_of(*model, batch).sum.item<double>();
  batch.facts[kPlace] = at::arange(80).view({2, 40}) + 5;
  head.retriever().exclude({{5, 0, 80}});
  EXPECT_GT(loss_of(*model, batch).sum.item<double>(), own + 20);
  for (const bool some : {false, true}) {
    if (some) {
      batch.facts["target"][0].slice(0, 3, 30) = -100;
      batch.facts["target"][1][1] = -100;
    }
    // All rows at once, and in tiles of 7.
    for (const int64_t tile : {int64_t{1} << 24, int64_t{7 * 29}}) {
      EXPECT_NEAR(loss_of(*model, batch, tile).sum.item<double>(), by_hand(*model, batch), 1e-3) << some << tile;
    }
  }
}

TEST(Causal, TargetsOfInvalidTokensDoNotCount) {
  const auto model = tiny("rope");
  Batch batch = random_batch(1, 6, 29);
  batch.facts["valid"] = at::tensor({0, 1, 1, 1, 1, 0}).to(at::kBool).unsqueeze(0);
  EXPECT_EQ(loss_of(*model, batch).count, 4);
}

TEST(Causal, NoTargetsGiveZeroAndZeroGradients) {
  const auto model = tiny("universal");
  Batch batch = random_batch(2, 5, 29);
  batch.facts["target"].fill_(-100);
  const Loss loss = loss_of(*model, batch);
  EXPECT_EQ(loss.count, 0);
  EXPECT_EQ(loss.sum.item<double>(), 0);
  loss.sum.backward();
  for (const auto& [name, weight] : model->weights()) {
    EXPECT_TRUE(!weight.grad().defined() || weight.grad().abs().max().item<double>() == 0) << name;
  }
}

TEST(Causal, TilesChangeNothing) {
  for (const char* name : {"rope", "knn_lm"}) {
    for (const char* tied : {"true", "false"}) {
      Recipe recipe = load_recipe(name);
      override_recipe(recipe, std::string(name) == "rope" ? text("head.tied=", tied)
                                                          : text("head.base={ kind = \"lm\", tied = ", tied, " }"));
      const auto model = Model::make(recipe, tiny_size());
      const Batch batch = random_batch(2, 20, 29);
      const auto gradients = [&](int64_t tile) {
        for (const auto& [key, weight] : model->weights()) weight.mutable_grad() = Tensor();
        const Loss loss = loss_of(*model, batch, tile);
        EXPECT_EQ(loss.count, 40);
        loss.sum.backward();
        std::vector<Tensor> out{loss.sum.detach()};
        for (const auto& [key, weight] : model->weights()) out.push_back(weight.grad());
        return out;
      };
      const auto whole = gradients(int64_t{1} << 24);
      for (const int64_t tile : {1, 29 * 7, 29 * 39}) {
        const auto parts = gradients(tile);
        for (size_t i = 0; i < whole.size(); ++i) EXPECT_LT(difference(parts[i], whole[i]), 1e-5) << name << tile << i;
      }
    }
  }
}

TEST(Causal, AuxiliaryLossesAreWeighed) {
  const auto model = tiny("universal");
  const Batch batch = random_batch(2, 7, 29);
  std::map<std::string, Tensor> losses;
  Pass pass{batch};
  pass.losses = &losses;
  const Loss loss = Causal({}).loss(*model, pass);
  ASSERT_TRUE(losses.count("ponder"));
  EXPECT_NEAR(loss.auxiliary.item<double>(), 0.01 * losses["ponder"].item<double>(), 1e-7);
  EXPECT_TRUE(loss.auxiliary.requires_grad());
}

TEST(Causal, LossesAndWeightsMustMatch) {
  Recipe recipe = load_recipe("universal");
  override_recipe(recipe, "losses.pondre=0.1");
  const auto model = Model::make(recipe, tiny_size());
  const std::string fault = message([&] { loss_of(*model, random_batch(1, 4, 29)); });
  EXPECT_NE(fault.find("[losses.pondre] expected a loss that a component of the recipe reports; found none of that "
                       "name (did you mean ponder?)"),
            std::string::npos)
      << fault;
  EXPECT_NE(message([&] {
              weigh_losses({{"span", at::ones({})}}, {});
            }).find("[losses.span] expected a weight"),
            std::string::npos);
  EXPECT_FALSE(weigh_losses({{"span", at::ones({})}}, {{"span", 0}}).defined());
  EXPECT_NE(message([&] {
              weigh_losses({}, {{"span", 1}});
            }).find("the recipe's components report none"),
            std::string::npos);
  EXPECT_EQ(weigh_losses({{"a", at::full({}, 2)}, {"b", at::full({}, 3)}}, {{"a", 0.5}, {"b", 2}}).item<double>(), 7);
}

TEST(Causal, WrongTargetsAreRefused) {
  const auto model = tiny("rope");
  Batch batch = random_batch(1, 4, 29);
  batch.facts["target"][0][2] = 29;
  EXPECT_EQ(message([&] { loss_of(*model, batch); }),
            "[objective] expected targets from 0 to 28, or -100 for none; found 29");
  batch.facts["target"][0][2] = -1;
  EXPECT_NE(message([&] { loss_of(*model, batch); }).find("found -1"), std::string::npos);
  batch.facts.erase("target");
  EXPECT_NE(message([&] { loss_of(*model, batch); }).find("expected the fact target, int64 [1, 4]; found none"),
            std::string::npos);
}

TEST(Causal, ObjectivesByName) {
  Recipe recipe = load_recipe("rope");
  EXPECT_TRUE(std::dynamic_pointer_cast<Causal>(make_objective(recipe)));
  override_recipe(recipe, "objective=casual");
  EXPECT_NE(message([&] {
              make_objective(recipe);
            }).find("[objective.kind] expected an objective; found casual (did you mean causal?)"),
            std::string::npos);
  override_recipe(recipe, "objective={ kind = \"causal\", tlie = 3 }");
  EXPECT_NE(message([&] { make_objective(recipe); }).find("[objective.tlie] expected a known key"), std::string::npos);
}

// 8600 rows x 250000 tokens are 2.15e9 scores: more than an int32 can index, 8.6 GB in float32.
TEST(Causal, MoreScoresThanInt32CanIndex) {
  const int64_t rows = 8600, vocabulary = 250'000, width = 8;
  ASSERT_GT(rows * vocabulary, int64_t{1} << 31);
  Context context;
  context.size.width = width, context.size.vocabulary = vocabulary;
  context.like = at::TensorOptions().dtype(at::kFloat);
  context.generator = at::detail::createCPUGenerator(1);
  LanguageModel::Options options;
  options.tied = false;
  LanguageModel head(options, context);
  const Tensor weight = head.named_parameters()["weight"];
  // Every row is the same but the last one: sums and gradients follow from two rows.
  const Tensor one = at::randn({1, width}, at::detail::createCPUGenerator(2)),
               other = at::randn({1, width}, at::detail::createCPUGenerator(3));
  const Tensor x = at::cat({one.expand({rows - 1, width}), other}).set_requires_grad(true);
  const Tensor target = at::full({rows}, 17, at::kLong);
  target[rows - 1] = vocabulary - 1;
  const Batch batch;
  const Pass pass{batch};
  const Tensor sum = cross_entropy(head, {weight}, x, target, Causal::Options().tile, vocabulary, pass);
  sum.backward();

  const auto few = [&](const Tensor& row, int64_t wanted) {
    const Tensor leaf = row.detach().to(at::kDouble).set_requires_grad(true);
    const Tensor loss =
        at::cross_entropy_loss(at::matmul(leaf, weight.detach().to(at::kDouble).t()), at::full({1}, wanted, at::kLong));
    loss.backward();
    return std::pair(loss.item<double>(), leaf.grad());
  };
  const auto [first, first_gradient] = few(one, 17);
  const auto [last, last_gradient] = few(other, vocabulary - 1);
  EXPECT_NEAR(sum.item<double>() / (first * (rows - 1) + last), 1, 1e-5);
  EXPECT_LT(difference(x.grad()[0].to(at::kDouble), first_gradient[0]), 1e-5);
  EXPECT_LT(difference(x.grad()[rows - 1].to(at::kDouble), last_gradient[0]), 1e-5);
  // d sum / d weight[17] = (rows - 1) (p_17 - 1) one + p'_17 other, by the same two rows.
  const Tensor p =
      at::softmax(at::matmul(at::cat({one, other}).to(at::kDouble), weight.detach().to(at::kDouble).t()), 1);
  const Tensor expected = (rows - 1) * (p[0][17] - 1) * one[0] + p[1][17] * other[0];
  EXPECT_LT(difference(weight.grad()[17].to(at::kDouble), expected), 1e-4);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss / (1 << 20), 6) << "GiB";
}

}  // namespace
}  // namespace kinfolk
