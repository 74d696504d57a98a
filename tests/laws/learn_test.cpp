// Every recipe loads, learns a tiny task, generates, and explains what serves it; `kinfolk check` finds its laws to
// hold.
#include "kinfolk/eval/laws.h"
#include "tests/laws/bench.h"

namespace kinfolk::laws {
namespace {

class Recipes : public Law {};

/// Adam (Kingma and Ba 2015), enough of it for a test.
struct Adam {
  std::vector<std::pair<std::string, Tensor>> weights;
  std::vector<Tensor> first, second;
  int step = 0;
  explicit Adam(const Model& model) : weights(model.weights()) {
    for (const auto& [name, w] : weights) first.push_back(at::zeros_like(w)), second.push_back(at::zeros_like(w));
  }
  void update(const Tensor& loss, double rate) {
    std::vector<Tensor> some;
    for (const auto& [name, w] : weights) some.push_back(w);
    const auto gradients = torch::autograd::grad({loss}, some, {}, false, false, true);
    const at::NoGradGuard guard;
    ++step;
    for (size_t i = 0; i < some.size(); ++i) {
      if (!gradients[i].defined()) continue;
      first[i].mul_(0.9).add_(gradients[i], 0.1);
      second[i].mul_(0.99).addcmul_(gradients[i], gradients[i], 0.01);
      const Tensor mean = first[i] / (1 - std::pow(0.9, step)), square = second[i] / (1 - std::pow(0.99, step));
      some[i].sub_(rate * mean / (square.sqrt() + 1e-8));
    }
  }
};

TEST_P(Recipes, LearnsAndGenerates) {
  const Bench bench(GetParam().recipe, 12, 4, at::kFloat);
  if (!bench.traits.causal) GTEST_SKIP() << bench.traits.why_not;
  // Each token has one successor; -ln(1/17) = 2.83 is what chance gives.
  const auto after = [](const Tensor& t) { return (t * 5 + 3).remainder(17); };
  std::vector<Tensor> columns{at::tensor({0, 1, 7, 11}, at::kLong)};
  while (columns.size() < 13) columns.push_back(after(columns.back()));
  const Tensor text = at::stack(columns, 1), in = text.slice(1, 0, 12), want = text.slice(1, 1);
  Adam adam(*bench.model);
  bench.model->train();
  double loss = 0;
  for (int step = 0; step < 120; ++step) {
    const Result result = bench.run(in, nullptr, Form::automatic, {}, static_cast<uint64_t>(step));
    Tensor sum = at::nll_loss_nd(result.out.log_softmax(-1).flatten(0, 1), want.reshape(-1));
    loss = sum.item<double>();
    for (const auto& [name, weight] : bench.model->loss_weights()) {
      const auto found = result.losses.find(name);
      ASSERT_NE(found, result.losses.end()) << "the recipe weighs a loss that nobody gives: " << name;
      sum = sum + weight * found->second;
    }
    adam.update(sum, 1e-2);
  }
  EXPECT_LT(loss, 0.7) << "of 2.83 at the start";

  State state = bench.model->start(4);
  Tensor token = text.slice(1, 0, 1);
  int64_t right = 0;
  for (int t = 0; t < 12; ++t) {
    const Tensor scores = bench.traits.streams ? bench.model->score({token, {}}, &state)
                                               : bench.model->score({text.slice(1, 0, t + 1), {}}).slice(1, t, t + 1);
    ASSERT_TRUE(scores.isfinite().all().item<bool>()) << t;
    token = scores.argmax(-1);
    right += token.eq(want.slice(1, t, t + 1)).sum().item<int64_t>();
    token = want.slice(1, t, t + 1);
  }
  EXPECT_GT(right, 36) << "of 48 tokens";
}

TEST_P(Recipes, ExplainNamesWhatServesEachBranch) {
  const Bench bench(GetParam().recipe, 4);
  const std::string explained = bench.model->explain();
  for (const auto& group : *GetParam().recipe.tree.find("layers")->as<Value::Array>()) {
    for (const auto& branch : *group.find("branches")->as<Value::Array>()) {
      const std::string kind = Spec(branch).kind();
      EXPECT_NE(explained.find(kind), std::string::npos) << kind << " is not in\n" << explained;
    }
  }
  EXPECT_NE(explained.find(std::to_string(bench.model->parameter_count())), std::string::npos) << explained;
  EXPECT_GT(bench.model->flops(12), 0);
  if (!bench.traits.causal) return;  // where all see all, pieces meet fewer pairs
  EXPECT_NEAR(bench.model->flops(12), bench.model->flops(5) + bench.model->flops(7, 5), 1e-6 * bench.model->flops(12));
}

TEST_P(Recipes, NoTokensAndAnEmptyCallAreFine) {
  const Bench bench(GetParam().recipe, 6);
  EXPECT_EQ(bench.run(bench.tokens.slice(1, 0, 0)).out.sizes(), (std::vector<int64_t>{2, 0, 17}));
  if (!bench.traits.streams) return;
  const at::NoGradGuard guard;
  const Result split = bench.pieces({0, 3, 3, 6});
  EXPECT_LE(apart(split.out, bench.run(bench.tokens).out), 1e-10);
  // A call without a single valid token.
  State state = bench.model->start(2);
  const Tensor out = bench.run(bench.tokens, &state, Form::automatic, {{"valid", at::zeros({2, 6}, at::kBool)}}).out;
  EXPECT_EQ(out.abs().sum().item<double>(), 0);
  EXPECT_LE(apart(bench.run(bench.tokens, &state).out, bench.run(bench.tokens).out), 1e-10);
}

TEST_P(Recipes, TheCheckOfTheProgramHolds) {
  for (const auto& law : check_laws(GetParam().recipe)) {
    EXPECT_TRUE(law.holds) << law.law << ": apart by " << law.difference;
    EXPECT_TRUE(law.applies || !law.note.empty()) << law.law;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, ::testing::ValuesIn(members()), name_of);

}  // namespace
}  // namespace kinfolk::laws
