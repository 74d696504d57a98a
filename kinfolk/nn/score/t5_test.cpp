#include "kinfolk/nn/score/t5.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

std::string options(const golden::Case& one) {
  return text("score = [{ kind = \"t5\", buckets = ", one.config.at("num_buckets").get<int64_t>(),
              ", farthest = ", one.config.at("max_distance").get<int64_t>(), " }]\npattern = \"",
              one.config.at("bidirectional").get<bool>() ? "full" : "causal", "\"\n");
}

TEST(T5, Golden) {
  for (const auto& one : golden::cases("attention/t5_bias")) {
    const int64_t buckets = one.config.at("num_buckets"), farthest = one.config.at("max_distance");
    const bool both_ways = one.config.at("bidirectional");
    if (one.has("in.rel")) {  // key minus query
      EXPECT_TRUE(t5_buckets(-one.at("in.rel"), buckets, farthest, both_ways).equal(one.at("out.bucket"))) << one.name;
      continue;
    }
    const int64_t queries = one.at("in.q").size(2), keys = one.at("in.k").size(2);
    const Tensor i = at::arange(keys - queries, keys, at::kLong).unsqueeze(1), j = at::arange(keys, at::kLong);
    EXPECT_TRUE(t5_buckets(i - j, buckets, farthest, both_ways).equal(one.at("out.bucket"))) << one.name;
    const auto branch = core_branch(
        one, options(one) + "scale = " + write_toml_value(Value(one.config.at("scale").get<double>())) + "\n");
    expect_core(one, *branch, 0, {{"table", std::dynamic_pointer_cast<T5>(branch->score[0])->biases}});
  }
}

TEST(T5, EveryBucketIsReachedAndNoneIsLeft) {
  for (const bool both_ways : {false, true})
    for (const int64_t buckets : {4, 8, 32, 33})
      for (const int64_t farthest : {17, 128, 1000}) {
        const Tensor distance = at::arange(both_ways ? -5000 : 0, 5000, at::kLong);
        const Tensor found = t5_buckets(distance, buckets, farthest, both_ways);
        EXPECT_EQ(found.min().item<int64_t>(), 0);
        EXPECT_LT(found.max().item<int64_t>(), buckets);
        const Tensor behind = t5_buckets(at::arange(5000, at::kLong), buckets, farthest, both_ways);
        EXPECT_TRUE(behind.diff().ge(0).all().item<bool>());
        EXPECT_EQ(behind[farthest].item<int64_t>(), behind[4999].item<int64_t>());
        EXPECT_LT(behind[0].item<int64_t>(), behind[farthest].item<int64_t>());
      }
  EXPECT_THROW(make_attention("score = [{ kind = \"t5\", buckets = 32, farthest = 16 }]", 8, 1), Error);
}

// The offset of the cache counts: 12 tokens one by one.
TEST(T5, CachedEqualsRecomputed) {
  const auto branch = make_attention("score = [{ kind = \"t5\", buckets = 6, farthest = 9 }]", 8, 2);
  const Sequence s{normal({2, 12, 8}, 5)};
  expect_same(run_with_gradients(*branch, s, std::vector<int64_t>(12, 1)), run_with_gradients(*branch, s, {12}),
              "token by token");
}

TEST(T5, TableIsTheStep) {
  const auto branch =
      make_attention("score = [{ kind = \"t5\", buckets = 8, farthest = 10 }]\npattern = \"full\"", 8, 2);
  auto& step = *branch->score[0];
  const Tensor distance = at::randint(-12, 13, {2, 1, 3, 5}, at::detail::createCPUGenerator(3), at::kLong);
  const Tensor scores = normal({2, 2, 3, 5}, 4);
  const auto table = step.by_distance(scores, -12, 12);
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->lowest, -12);
  EXPECT_TRUE(table->table.requires_grad());
  const Tensor got = step.apply({scores, {}, distance, -12, 12}, step.prepare(scores, -12, 12));
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      EXPECT_LE(testing::distance(got[b][h] - scores[b][h],
                                  table->table[h].index_select(0, (distance[b][0] + 12).flatten()).view({3, 5})),
                1e-15);
}

}  // namespace
}  // namespace kinfolk
