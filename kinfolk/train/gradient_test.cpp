#include "kinfolk/train/gradient.h"

#include <gtest/gtest.h>

#include "kinfolk/train/training_testing.h"

namespace kinfolk {
namespace {

using namespace testing_runs;

/// Eight sequences with one to eight targets.
Batch uneven() {
  at::manual_seed(1);
  const Tensor tokens = at::randint(256, {8, 8}, at::kLong), target = at::randint(256, {8, 8}, at::kLong);
  for (int64_t b = 0; b < 8; ++b) target[b].slice(0, b + 1, 8).fill_(-100);
  return {tokens, {{"target", target}}};
}

TEST(Gradient, AnySplitOfAStepGivesTheSame) {
  for (const char* member : {"rope", "universal"}) {  // the latter has an auxiliary loss
    const Recipe recipe = small_recipe(member);
    const auto model = Model::make(recipe, small_size());
    const auto objective = make_objective(recipe);
    std::vector<Tensor> expected;
    double loss = 0;
    for (const int64_t parts : {1, 2, 4, 8}) {
      std::vector<State> none;
      for (const auto& [name, weight] : model->weights()) weight.mutable_grad().reset();
      const StepLoss step =
          accumulate_gradient(*model, *objective, uneven(), parts, none, false, [](int64_t) { return 1; });
      EXPECT_EQ(step.count, 36);
      std::vector<Tensor> found;
      for (const auto& [name, weight] : model->weights()) found.push_back(weight.grad() / step.count);
      if (parts == 1) {
        expected = found;
        loss = step.sum / static_cast<double>(step.count);
        continue;
      }
      EXPECT_NEAR(step.sum / static_cast<double>(step.count), loss, 1e-5) << member << parts;
      if (std::string(member) != "rope") continue;  // its auxiliary loss is a mean over tokens, not over targets
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-4, 1e-6)) << parts << " " << model->weights()[i].first;
      }
    }
  }
}

TEST(Gradient, IsThatOfTheMeanOverTargets) {
  const Recipe recipe = small_recipe("rope");
  const auto model = Model::make(recipe, small_size());
  const Batch batch = uneven();
  Pass pass{batch};
  const Tensor scores = model->forward(pass).log_softmax(-1);
  Tensor sum = at::zeros({});
  for (int64_t b = 0; b < 8; ++b)
    for (int64_t i = 0; i <= b; ++i) sum = sum - scores[b][i][batch.fact("target")[b][i].item<int64_t>()];
  (sum / 36).backward();
  std::vector<Tensor> expected;
  for (const auto& [name, weight] : model->weights()) {
    expected.push_back(weight.grad().clone());
    weight.mutable_grad().reset();
  }
  std::vector<State> none;
  const auto objective = make_objective(recipe);
  const StepLoss step = accumulate_gradient(*model, *objective, batch, 4, none, false, [](int64_t) { return 1; });
  EXPECT_NEAR(step.sum, sum.item<double>(), 1e-3);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(model->weights()[i].second.grad() / 36, expected[i], 1e-4, 1e-6)) << i;
  }
}

TEST(Gradient, NoTargetsNoGradient) {
  const Recipe recipe = small_recipe("rope");
  const auto model = Model::make(recipe, small_size());
  Batch batch = uneven();
  batch.facts["target"].fill_(-100);
  std::vector<State> none;
  const auto objective = make_objective(recipe);
  const StepLoss step = accumulate_gradient(*model, *objective, batch, 2, none, false, [](int64_t) { return 1; });
  EXPECT_EQ(step.count, 0);
  EXPECT_EQ(step.sum, 0);
  for (const auto& [name, weight] : model->weights()) EXPECT_FALSE(weight.grad().defined()) << name;
}

}  // namespace
}  // namespace kinfolk
