#include "kinfolk/nn/memory/sinks.h"

#include "kinfolk/nn/qk/rotation.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

std::string options(int64_t window, int64_t first, const std::string& qk, const std::string& memory = "sinks") {
  return text(
      "pattern = \"causal & (window(", window, ") | columns(", first, "))\"\nmemory = ",
      memory == "sinks" ? text("{ kind = \"sinks\", window = ", window, ", first = ", first, " }") : "\"cache\"",
      "\nqk = [", qk, "]");
}
std::string by_place(int64_t window, int64_t first) {
  return text("{ kind = \"sink_rope\", window = ", window, ", first = ", first, " }");
}

/// The article's procedure, one token at a time: the cache is a list of unturned keys, turned by their places in it.
Tensor by_procedure(const Attention& branch, const Tensor& x, int64_t window, int64_t first) {
  const at::NoGradGuard guard;
  const int64_t B = x.size(0), L = x.size(1), D = x.size(2), H = 2, d = D / H;
  const Rotation rotation{rope_frequencies(10000, d)};
  const auto heads = [&](const Linear& linear) { return linear.forward(x).unflatten(-1, {H, d}).transpose(1, 2); };
  const Tensor q = heads(*branch.q), k = heads(*branch.k), v = heads(*branch.v);
  std::vector<int64_t> cache;
  std::vector<Tensor> out;
  for (int64_t i = 0; i < L; ++i) {
    cache.push_back(i);
    if (static_cast<int64_t>(cache.size()) > first + window) cache.erase(cache.begin() + first);
    const Tensor which = at::tensor(cache, at::kLong);
    const Tensor place = at::arange(which.numel(), at::kDouble).unsqueeze(0);
    const Tensor keys = rotation.turn(k.index_select(2, which), place);
    const Tensor query = rotation.turn(q.narrow(2, i, 1), place.narrow(1, which.numel() - 1, 1));
    const Tensor weights = at::softmax(at::matmul(query, keys.transpose(2, 3)) / std::sqrt(static_cast<double>(d)), -1);
    out.push_back(at::matmul(weights, v.index_select(2, which)).transpose(1, 2).reshape({B, 1, D}));
  }
  return branch.out->forward(at::cat(out, 1));
}

TEST(Sinks, EqualTheArticlesProcedure) {
  for (const auto& [window, first] :
       std::vector<std::pair<int64_t, int64_t>>{{5, 3}, {2, 4}, {1, 1}, {4, 0}, {40, 2}}) {
    const auto branch = make_attention(options(window, first, by_place(window, first)), 8, 2);
    const Sequence s{normal({2, 23, 8}, 1)};
    const Tensor want = by_procedure(*branch, s.x, window, first);
    for (const auto& calls :
         std::vector<std::vector<int64_t>>{{23}, {9, 14}, {1, 1, 2, 19}, std::vector<int64_t>(23, 1)})
      EXPECT_LE(distance(run(*branch, s, calls), want), 1e-11) << window << " " << first << " " << calls[0];
  }
}

TEST(Sinks, WithPositionsOfTheTextTheyAreTheCacheThatGrows) {
  for (const std::string qk : {"\"rope\"", "\"rope\", \"qk_bias\"", "{ kind = \"rope_ntk_dynamic\", trained = 6 }"}) {
    const auto bounded = make_attention(options(5, 3, qk), 8, 2),
               whole = make_attention(options(5, 3, qk, "cache"), 8, 2);
    const Sequence s{normal({2, 23, 8}, 2)};
    const Outcome want = run_with_gradients(*whole, s, {23});
    for (const auto& calls : std::vector<std::vector<int64_t>>{{23}, {9, 14}, {4, 1, 18}})
      expect_same(run_with_gradients(*bounded, s, calls), want, qk);
  }
}

TEST(Sinks, EverySplitGivesTheWholeWithItsGradients) {
  const int64_t length = 12;
  const auto branch = make_attention(options(4, 3, by_place(4, 3)), 8, 2);
  Sequence s{normal({2, length, 8}, 3)};
  for (const bool marked : {false, true}) {
    if (marked) {
      s.valid = at::ones({2, length}, at::kBool);
      s.valid[0].slice(0, 1, 4).fill_(false), s.valid[1].slice(0, 6, 8).fill_(false);
      s.document = (at::arange(length, at::kLong) >= 5).to(at::kLong).repeat({2, 1});
    }
    const Outcome whole = run_with_gradients(*branch, s, {length});
    for (const auto& calls : splits(length)) expect_same(run_with_gradients(*branch, s, calls), whole, "split");
  }
}

TEST(Sinks, StateIsThereAtTheStartAndNeverGrows) {
  const auto branch = make_attention(options(4, 3, by_place(4, 3)), 8, 2);
  State state = branch->start(1, real());
  const int64_t bytes = state.bytes();
  const at::NoGradGuard guard;
  for (int64_t call = 0; call < 12; ++call) {
    run(*branch, {normal({1, 7, 8}, static_cast<uint64_t>(call))}, {7}, &state, 0, call * 7);
    EXPECT_EQ(state.bytes(), bytes);
  }
  EXPECT_TRUE(state.tensors.at("first_at").equal(at::arange(3, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(branch->traits().bounded);
  EXPECT_FALSE(make_attention(options(4, 3, "\"rope\"", "cache"), 8, 2)->traits().bounded);
}

TEST(Sinks, NoDistanceIsLongerThanTheCache) {
  // A text of a million tokens is read like a short one: the same keys at the same places give the same numbers.
  const auto branch = make_attention(options(4, 3, by_place(4, 3)), 8, 2);
  const at::NoGradGuard guard;
  const Sequence s{normal({1, 30, 8}, 4)};
  State state = branch->start(1, real());
  run(*branch, {s.x.slice(1, 0, 20)}, {20}, &state);
  State later = state.clone();
  later.tensors.at("at").add_(1'000'000);
  // Kept keys are turned by their positions in the text; those of the window turn on with it.
  const Rotation rotation{rope_frequencies(10000, 4)};
  later.tensors.at("k") = rotation.turn(later.tensors.at("k"), at::full({1, 1}, 1e6, at::kDouble));
  const Tensor soon = run(*branch, {s.x.slice(1, 20)}, {10}, &state, 0, 20);
  const Tensor late = run(*branch, {s.x.slice(1, 20)}, {10}, &later, 0, 1'000'020);
  EXPECT_LE(distance(late, soon), 1e-8);
}

TEST(Sinks, RefuseWhatDoesNotFit) {
  EXPECT_THROW(make_attention("pattern = \"full\"\nmemory = \"sinks\"", 8, 2), Error);
  EXPECT_THROW(make_attention(text("memory = { kind = \"sinks\", window = 5 }\nqk = [", by_place(4, 3), "]"), 8, 2),
               Error);
}

}  // namespace
}  // namespace kinfolk
