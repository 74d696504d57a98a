#include "kinfolk/nn/score/shaw.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

TEST(Shaw, Golden) {
  for (const auto& one : golden::cases("attention/shaw")) {
    const auto branch =
        core_branch(one, text("pattern = \"", one.config.at("causal").get<bool>() ? "causal" : "full",
                              "\"\nscore = [{ kind = \"shaw\", clip = ", one.config.at("clip").get<int64_t>(), " }]"));
    const auto step = std::dynamic_pointer_cast<Shaw>(branch->score[0]);
    expect_core(one, *branch, 0, {{"wk", step->wk}, {"wv", step->wv}});
  }
}

// By definition, with padding, documents, grouped heads, a window and a state.
TEST(Shaw, ValuesOfEachDistanceAmongPaddingAndDocuments) {
  const auto branch =
      make_attention("groups = 1\npattern = \"causal & window(7)\"\nscore = [{ kind = \"shaw\", clip = 3 }]", 8, 2);
  const Tensor valid = at::ones({2, 12}, at::kBool);
  valid[0].narrow(0, 3, 2).fill_(false);
  const Tensor document = at::cat({at::zeros({2, 5}, at::kLong), at::ones({2, 7}, at::kLong)}, 1);
  const Sequence s{normal({2, 12, 8}, 5), valid, document};
  const Outcome whole = run_with_gradients(*branch, s, {12});
  expect_same(run_with_gradients(*branch, s, {4, 1, 7}), whole, "pieces");
  expect_same(run_with_gradients(*branch, s, std::vector<int64_t>(12, 1)), whole, "token by token");
  EXPECT_GT(whole.gradients.at("score.0.wv").abs().max().item<double>(), 0);

  const auto step = std::dynamic_pointer_cast<Shaw>(branch->score[0]);
  const Tensor q = normal({1, 2, 9, 4}, 1), k = normal({1, 1, 9, 4}, 2), v = normal({1, 1, 9, 4}, 3);
  const Tensor at = at::arange(9, at::kLong).unsqueeze(0);
  const Read read = branch->look(q, at, {}, {Keys{k, v, at, {}, {}, {}}});
  const Tensor row = (at.squeeze(0).unsqueeze(0) - at.squeeze(0).unsqueeze(1)).clamp(-3, 3) + 3;  // [i, j]: j - i
  const Tensor wk = step->wk.index_select(0, row.flatten()).view({9, 9, 4}),
               wv = step->wv.index_select(0, row.flatten()).view({9, 9, 4});
  Tensor scores = at::einsum("hid,ijd->hij", {q[0], k[0][0].unsqueeze(0) + wk}) * 0.5;
  const Tensor seen = at::ones({9, 9}, at::kBool).tril().logical_and(at::ones({9, 9}, at::kBool).triu(-6));
  scores = scores.masked_fill(seen.logical_not(), -INFINITY);
  const Tensor want = at::einsum("hij,ijd->hid", {scores.softmax(-1), v[0][0].unsqueeze(0) + wv});
  EXPECT_LE(distance(read.out[0], want), 1e-12);
}

TEST(Shaw, RowsOfTheFutureGetNoGradientInACausalBranch) {
  const auto branch = make_attention("score = [{ kind = \"shaw\", clip = 2 }]", 8, 1);
  const Outcome out = run_with_gradients(*branch, {normal({1, 6, 8}, 5)}, {6});
  for (const std::string name : {"score.0.wk", "score.0.wv"}) {
    const Tensor rows = out.gradients.at(name).abs().sum(-1);
    EXPECT_EQ(rows.narrow(0, 3, 2).max().item<double>(), 0) << name;
    EXPECT_GT(rows.narrow(0, 0, 3).min().item<double>(), 0) << name;
  }
}

TEST(Shaw, FusedIsTheDefinition) {
  for (const std::string pattern : {"causal", "full"}) {
    const std::string options = "pattern = \"" + pattern + "\"\nscore = [{ kind = \"shaw\", clip = 5 }]";
    const auto want = make_attention(options, 32, 2);
    const auto got = make_attention(options, 32, 2, at::TensorOptions().dtype(at::kFloat));
    EXPECT_EQ(got->explain(), "attend(" + pattern + "), fused");
    const Tensor x = normal({2, 150, 32}, 5);
    const Outcome whole = run_with_gradients(*want, {x}, {150});
    const Outcome fused = run_with_gradients(*got, {x.to(at::kFloat)}, {150});
    EXPECT_LE(testing::distance(fused.out.to(at::kDouble), whole.out), 1e-5);
    for (const std::string name : {"x", "score.0.wk", "score.0.wv", "q.weight", "v.weight"}) {
      const double size = whole.gradients.at(name).abs().max().item<double>();
      EXPECT_GT(size, 0) << name;
      EXPECT_LE(testing::distance(fused.gradients.at(name).to(at::kDouble), whole.gradients.at(name)),
                1e-4 * (1 + size))
          << name;
    }
  }
}

TEST(Shaw, ByQueryIsTheStep) {
  const auto branch = make_attention("pattern = \"full\"\nscore = [{ kind = \"shaw\", clip = 2 }]", 8, 2);
  auto& step = *branch->score[0];
  const Tensor q = normal({2, 2, 3, 4}, 1), scores = normal({2, 2, 3, 5}, 4);
  const Tensor distance = at::randint(-6, 7, {2, 1, 3, 5}, at::detail::createCPUGenerator(3), at::kLong);
  const Tensor got = step.apply({scores, q, distance, -6, 6}, step.prepare(scores, -6, 6));
  const auto table = step.by_query(q, -6, 6);
  ASSERT_TRUE(table.has_value());
  const Tensor all = at::einsum("bhic,htc->bhit", {table->p, table->r}) * table->scale;
  EXPECT_LE(testing::distance(got - scores, all.gather(-1, (distance + 6).expand(scores.sizes()))), 1e-14);
}

TEST(Shaw, TwoTablesOfValuesAreRefused) { EXPECT_THROW(make_attention("score = [\"shaw\", \"shaw\"]", 8, 1), Error); }

}  // namespace
}  // namespace kinfolk
