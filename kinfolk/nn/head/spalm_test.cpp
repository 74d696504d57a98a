#include "kinfolk/nn/head/spalm.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"
#include "kinfolk/reference/golden.h"
#include "kinfolk/reference/knn.h"

namespace kinfolk {
namespace {

TEST(Spalm, Golden) {
  for (const auto& c : golden::cases("attention/spalm")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const auto leaf = [&](const char* name) { return c.at(name).to(type).requires_grad_(); };
      const Tensor h = leaf("in.h"), y = leaf("in.retrieved"), gate = leaf("param.wg"), table = leaf("param.embedding");
      const Mixed got = mix_retrieved(h, y, gate);
      const Tensor p = at::matmul(got.z, table.t()).softmax(-1);
      golden::expect_close(got.m, c.at("out.m"), c, "m");
      golden::expect_close(got.g, c.at("out.g"), c, "g");
      golden::expect_close(got.z, c.at("out.z"), c, "z");
      golden::expect_close(p, c.at("out.p"), c, "p");
      ((got.m * c.at("cot.m")).sum() + (got.g * c.at("cot.g")).sum() + (got.z * c.at("cot.z")).sum() +
       (p * c.at("cot.p")).sum())
          .backward();
      golden::expect_gradient(h.grad(), c.at("grad.in.h"), c, "h");
      golden::expect_gradient(y.grad(), c.at("grad.in.retrieved"), c, "retrieved");
      golden::expect_gradient(gate.grad(), c.at("grad.param.wg"), c, "gate");
      golden::expect_gradient(table.grad(), c.at("grad.param.embedding"), c, "embedding");
    }
  }
}

TEST(Spalm, EqualsTheLoopsWhereFewerOrNoneAreFound) {
  at::manual_seed(3);
  const Tensor h = at::randn({3, 5}, at::kDouble), y = at::randn({3, 4, 5}, at::kDouble),
               gate = at::randn({5}, at::kDouble);
  const std::vector<int64_t> found = {4, 2, 0};
  const Tensor none = at::arange(4).unsqueeze(0) >= at::tensor(found).unsqueeze(1);
  const auto want = reference::spalm(h, y, gate, found);
  const Tensor live = h.clone().requires_grad_();
  const Mixed got = mix_retrieved(live, y, gate, none);
  EXPECT_LT((got.m - want.m).abs().max().item<double>(), 1e-14);
  EXPECT_LT((got.g - want.g).abs().max().item<double>(), 1e-14);
  EXPECT_LT((got.z - want.z).abs().max().item<double>(), 1e-14);
  got.z.sum().backward();
  EXPECT_TRUE(live.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(live.grad()[2].equal(at::ones({5}, at::kDouble)));
}

TEST(Spalm, WithoutAStoreItIsItsTransformerXl) {
  const auto model = tiny("spalm"), base = tiny("transformer_xl");
  const Batch batch = random_batch(2, 40, model->size().vocabulary);
  EXPECT_TRUE(model->score(batch).equal(base->score(batch)));
  EXPECT_FALSE(model->head().wants_store());  // its gate has learned nothing
  model->head().remember(at::randn({6, model->size().width}), at::arange(6));
  EXPECT_FALSE(model->score(batch).equal(base->score(batch)));
}

TEST(Spalm, ReadsTheMixtureOfTheTokensThatFollowed) {
  const auto model = tiny("spalm");
  const int64_t width = model->size().width;
  auto& head = dynamic_cast<Spalm&>(model->head());
  at::NoGradGuard guard;
  const Tensor keys = at::randn({9, width}), tokens = at::randint(0, 29, {9}, at::kLong);
  head.remember(keys, tokens);
  const Tensor h = (keys.slice(0, 0, 3) + 0.01 * at::randn({3, width})).unsqueeze(0);
  const Tensor table = model->named_parameters()["input.table"];
  const Tensor near =
      std::get<1>((h[0].unsqueeze(1) - keys.unsqueeze(0)).square().sum(-1).sort(-1)).slice(1, 0, 4);  // [3, 4]
  const Tensor y = table.index_select(0, tokens.index_select(0, near.flatten())).view({3, 4, width});
  const auto want = reference::spalm(h[0].to(at::kDouble), y.to(at::kDouble),
                                     model->named_parameters()["head.gate"].to(at::kDouble), {4, 4, 4});
  const Batch batch;
  Pass pass{batch};
  EXPECT_LT((head.read(h, pass)[0].to(at::kDouble) - at::matmul(want.z, table.to(at::kDouble).t()))
                .abs()
                .max()
                .item<double>(),
            1e-4);
}

TEST(Spalm, WantsATableOfTokens) {
  Context context;
  context.size = tiny_size();
  EXPECT_THROW(registry<Head>().create(Spec("spalm"), context, "head"), UsageError);
}

}  // namespace
}  // namespace kinfolk
