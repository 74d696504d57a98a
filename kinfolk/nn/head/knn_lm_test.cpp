#include "kinfolk/nn/head/knn_lm.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/nearest.h"
#include "kinfolk/reference/golden.h"
#include "kinfolk/reference/knn.h"

namespace kinfolk {
namespace {

/// A base head that says what a test gives it.
struct Given : Head {
  struct Options {
    template <class Visit>
    void fields(Visit&&) {}
  };
  Given(const Options&, const Context&) {}
  Tensor read(const Tensor& x, Pass&) override { return scores.view({x.size(0), x.size(1), -1}); }
  double flops(int64_t) const override { return 0; }
  inline static Tensor scores;
};

KnnLm make(KnnLm::Options options, int64_t width, int64_t vocabulary) {
  if (!registry<Head>().has("given")) registry<Head>().add<Given>("given", "scores of a test");
  options.base = "given";
  Context context;
  context.size.width = width;
  context.size.vocabulary = vocabulary;
  return KnnLm(options, context);
}

Tensor read(KnnLm& head, const Tensor& query) {  // [M, D] -> [M, V]
  const Batch batch;
  Pass pass{batch};
  return head.read(query.unsqueeze(0), pass).squeeze(0);
}

TEST(KnnLm, Golden) {
  for (const auto& c : golden::cases("attention/knn_lm")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const Tensor query = c.at("in.query").to(type).requires_grad_(),
                   logits = c.at("in.logits").to(type).requires_grad_();
      KnnLm::Options options;
      options.k = c.config.at("k").get<int64_t>();
      options.lambda = c.config.at("lambda").get<double>();
      options.temperature = c.config.at("temperature").get<double>();
      options.metric = c.config.at("metric").get<std::string>() == "l2" ? "l2" : "squared";
      KnnLm head = make(options, query.size(1), logits.size(1));
      head.remember(c.at("in.keys"), c.at("in.tokens"));
      Given::scores = logits;
      const Tensor p = read(head, query).exp(), p_knn = head.neighbours_say(query);
      golden::expect_close(p, c.at("out.p"), c, "p");
      golden::expect_close(p_knn, c.at("out.p_knn"), c, "p_knn");
      EXPECT_TRUE(nearest(query, c.at("in.keys"), options.k).index.equal(c.at("out.neighbours"))) << c.name;
      ((p * c.at("cot.p")).sum() + (p_knn * c.at("cot.p_knn")).sum()).backward();
      golden::expect_gradient(query.grad(), c.at("grad.in.query"), c, "query");
      golden::expect_gradient(logits.grad(), c.at("grad.in.logits"), c, "logits");
    }
  }
}

TEST(KnnLm, EqualsTheLoops) {
  at::manual_seed(5);
  // Keys are float32 numbers, as the store holds them; 13 entries and k = 13 or fewer.
  const Tensor keys = at::randn({13, 4}).to(at::kDouble), query = at::randn({6, 4}).to(at::kDouble);
  const Tensor tokens = at::randint(0, 5, {13}, at::kLong), logits = at::randn({6, 5}, at::kDouble);
  for (const bool squared : {true, false}) {
    for (const int64_t k : {1, 4, 13}) {
      KnnLm::Options options;
      options.k = k, options.lambda = 0.4, options.temperature = 0.7, options.metric = squared ? "squared" : "l2";
      KnnLm head = make(options, 4, 5);
      head.remember(keys, tokens);
      Given::scores = logits;
      const auto want = reference::knn_lm(query, keys, tokens, logits, k, 0.4, 0.7, squared);
      EXPECT_LT((read(head, query).exp() - want.p).abs().max().item<double>(), 1e-12);
      EXPECT_LT((head.neighbours_say(query) - want.p_knn).abs().max().item<double>(), 1e-12);
    }
  }
}

TEST(KnnLm, WithoutAStoreItIsTheBase) {
  KnnLm head = make({}, 4, 5);
  Given::scores = at::randn({2, 5});
  EXPECT_TRUE(head.wants_store());
  EXPECT_EQ(head.stored(), 0);
  EXPECT_TRUE(read(head, at::randn({2, 4})).equal(Given::scores));
  head.remember(at::randn({3, 4}), at::full({3}, -100, at::kLong));  // nothing to learn from these
  EXPECT_EQ(head.stored(), 0);
  head.remember(at::randn({3, 4}), at::tensor({1, -100, 2}, at::kLong));
  EXPECT_EQ(head.stored(), 2);
  head.forget();
  EXPECT_TRUE(read(head, at::randn({2, 4})).equal(Given::scores));
}

TEST(KnnLm, AQueryOnAStoredKeyHasFiniteGradients) {
  for (const char* metric : {"squared", "l2"}) {
    KnnLm::Options options;
    options.metric = metric, options.temperature = 1e-3, options.k = 4;
    KnnLm head = make(options, 4, 5);
    const Tensor keys = at::randn({6, 4});
    head.remember(keys, at::arange(6).remainder(5));
    const Tensor query = keys.slice(0, 0, 2).clone().requires_grad_();
    Given::scores = at::full({2, 5}, -200.0);
    Given::scores.select(1, 2).fill_(300);
    Given::scores.requires_grad_();
    const Tensor out = read(head, query);
    EXPECT_TRUE(out.isfinite().all().item<bool>()) << metric;
    EXPECT_LT((out.exp().sum(-1) - 1).abs().max().item<double>(), 1e-5) << metric;
    out.sum().backward();
    EXPECT_TRUE(query.grad().isfinite().all().item<bool>()) << metric;
    EXPECT_TRUE(Given::scores.grad().isfinite().all().item<bool>()) << metric;
  }
}

TEST(KnnLm, KeepsTheNewestWithinItsCapacity) {
  KnnLm::Options options;
  options.capacity = 10, options.k = 1, options.lambda = 0.5, options.temperature = 1;
  KnnLm head = make(options, 1, 40);
  for (int64_t i = 0; i < 24; i += 3)
    head.remember(at::arange(i, i + 3).view({3, 1}).to(at::kFloat), at::arange(i, i + 3));
  EXPECT_EQ(head.stored(), 10);
  const Tensor said = head.neighbours_say(at::arange(24).view({24, 1}).to(at::kFloat)).argmax(-1);
  EXPECT_TRUE(said.equal(at::arange(24).clamp_min(14)));  // 14 .. 23 are left
}

TEST(KnnLm, TheStoreIsInTheBuffersAndServesWhenTheyAreReplaced) {
  KnnLm::Options options;
  options.k = 1;
  KnnLm one = make(options, 2, 5), other = make(options, 2, 5);
  one.remember(at::eye(2), at::tensor({3, 4}, at::kLong));
  one.neighbours_say(at::eye(2));
  const auto from = one.named_buffers(), to = other.named_buffers();
  ASSERT_EQ(from["keys"].size(0), 2);
  for (const char* name : {"keys", "tokens"}) Tensor(to[name]).set_data(from[name].clone());
  EXPECT_TRUE(other.neighbours_say(at::eye(2)).argmax(-1).equal(at::tensor({3, 4}, at::kLong)));
  Tensor(to["keys"]).copy_(at::eye(2).flip(0) * 3);  // the same size: norms made earlier must not serve
  EXPECT_TRUE(other.neighbours_say(at::eye(2)).argmax(-1).equal(at::tensor({4, 3}, at::kLong)));
}

TEST(KnnLm, RefusesWhatDoesNotFit) {
  KnnLm head = make({}, 4, 5);
  EXPECT_THROW(head.remember(at::zeros({2, 3}), at::zeros({2}, at::kLong)), Error);
  EXPECT_THROW(head.remember(at::zeros({2, 4}), at::full({2}, 5, at::kLong)), Error);
  EXPECT_THROW(head.neighbours_say(at::zeros({1, 4})), Error);
}

}  // namespace
}  // namespace kinfolk
