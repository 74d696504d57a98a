#include "kinfolk/nn/retrieve/retriever.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/head/knn_lm.h"
#include "kinfolk/nn/retrieve/testing.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

std::vector<uint8_t> random_bytes(int64_t n, uint64_t seed, int64_t kinds = 256) {
  const Tensor drawn = at::randint(0, kinds, {n}, at::detail::createCPUGenerator(seed), at::kByte).contiguous();
  return {drawn.const_data_ptr<uint8_t>(), drawn.const_data_ptr<uint8_t>() + n};
}
std::vector<uint8_t> part(const std::vector<uint8_t>& text, int64_t from, int64_t to) {
  return {text.begin() + from, text.begin() + to};
}
std::vector<uint8_t> joined(std::initializer_list<std::vector<uint8_t>> parts) {
  std::vector<uint8_t> out;
  for (const auto& one : parts) out.insert(out.end(), one.begin(), one.end());
  return out;
}

TEST(OwnEntries, FindATextWhereverItLies) {
  const auto text = random_bytes(5000, 1), other = random_bytes(3000, 2);
  using Runs = std::vector<OwnRun>;
  EXPECT_EQ(own_runs(text, text, 0), (Runs{{0, 0, 4999}}));
  EXPECT_EQ(own_runs(text, other, 0), Runs{});
  EXPECT_EQ(own_runs(text, joined({other, text, other}), 100), (Runs{{0, 3100, 5000}}));
  EXPECT_EQ(own_runs(part(text, 1234, 3000), text, 0), (Runs{{0, 1234, 1766}}));  // a part is scored
  EXPECT_EQ(own_runs(text, part(text, 777, 4000), 10), (Runs{{777, 10, 3222}}));  // a part was stored
  EXPECT_EQ(own_runs(text, joined({part(text, 2000, 5000), other}), 0), (Runs{{2000, 0, 3000}}));
  EXPECT_EQ(own_runs(text, joined({text, text}), 0), (Runs{{0, 0, 5000}, {0, 5000, 4999}}));  // stored twice
  EXPECT_EQ(own_runs(part(text, 0, 20), text, 0), (Runs{{0, 0, 20}}));  // shorter than what a run must be
}

TEST(OwnEntries, ASharedSentenceIsNotOnesOwn) {
  const auto shared = random_bytes(300, 3);
  const auto a = joined({random_bytes(2000, 4), shared, random_bytes(2000, 5)});
  const auto b = joined({random_bytes(1000, 6), shared, random_bytes(3000, 7)});
  EXPECT_TRUE(own_runs(a, b, 0).empty());
  const auto flat = std::vector<uint8_t>(3000, 'a');  // every place is like every other
  const auto runs = own_runs(flat, flat, 0);
  ASSERT_FALSE(runs.empty());
  EXPECT_TRUE(std::find(runs.begin(), runs.end(), OwnRun{0, 0, 2999}) != runs.end());
}

TEST(OwnEntries, OfADatastoreWithSeveralTexts) {
  const TemporaryFolder folder;
  const auto text = random_bytes(900, 1, 20), other = random_bytes(700, 2, 20);
  DatastoreWriter writer(folder / "d", manifest_of(2, 20));
  for (const auto* one : {&other, &text}) {
    writer.begin("one", one->front());
    const auto n = static_cast<int64_t>(one->size()) - 1;
    Tensor tokens = at::empty({n}, at::kLong);
    for (int64_t i = 0; i < n; ++i) tokens[i] = static_cast<int64_t>((*one)[static_cast<size_t>(i) + 1]);
    writer.append(at::randn({n, 2}), tokens);
  }
  writer.commit();
  const auto store = Datastore::open(folder / "d");
  EXPECT_EQ(own_entries(*store, text), (std::vector<OwnRun>{{0, 699, 899}}));
  EXPECT_TRUE(own_entries(*store, random_bytes(900, 9, 250)).empty());
}

TEST(Retriever, APlaceNeverFindsItsOwnEntries) {
  at::manual_seed(1);
  const Tensor keys = at::randn({40, 4}), tokens = at::arange(40);
  for (const bool on_disk : {false, true}) {
    const TemporaryFolder folder;
    Retriever retriever(at::empty({0, 4}), at::empty({0}, at::kLong), 1000, 256, "test");
    if (on_disk) {
      const auto store = stored(folder / "d", keys, tokens);
      retriever.attach(store, exact_search(store));
    } else {
      retriever.remember(keys, tokens);
    }
    const Tensor places = at::arange(40);
    EXPECT_TRUE(retriever.find(keys, 3, places).index.select(1, 0).equal(places));  // nothing was excluded
    retriever.exclude({{0, 0, 30}, {5, 20, 5}});  // entry p for places 0 .. 29, and entries 20 .. 24 for 5 .. 9
    const auto found = retriever.find(keys, 39, places);
    for (int64_t p = 0; p < 40; ++p) {
      const auto has = [&](int64_t entry) { return found.index[p].eq(entry).any().item<bool>(); };
      EXPECT_EQ(has(p), p >= 30) << p;
      if (p >= 5 && p < 10) EXPECT_FALSE(has(p + 15)) << p;
      EXPECT_TRUE(has((p + 1) % 40) || (p >= 5 && p < 10)) << p;
    }
    EXPECT_EQ(found.index.ge(0).sum(1)[7].item<int64_t>(), 38);  // fewer are left than were asked for
    EXPECT_TRUE(retriever.find(keys, 3, at::full({40}, -1, at::kLong)).index.select(1, 0).equal(places));
    EXPECT_TRUE(retriever.find(keys, 3).index.select(1, 0).equal(places));  // places unknown
    const auto want = retriever.find(keys, 10).index, got = retriever.find(keys, 9, places).index;
    EXPECT_TRUE(got.slice(0, 0, 5).equal(want.slice(0, 0, 5).slice(1, 1)));  // the rest in the same order
  }
}

TEST(Retriever, AHeadIsToldPlacesByTheBatch) {
  const auto model = tiny("knn_lm");
  auto& head = dynamic_cast<KnnLm&>(model->head());
  Batch batch = random_batch(1, 60, model->size().vocabulary);
  Pass pass{batch};
  Tensor hidden;
  {
    at::NoGradGuard guard;
    hidden = model->hidden(pass)[0];
  }
  head.remember(hidden, batch.fact("target")[0]);
  head.tune({1, 0.9, 1, "", 0, 0}, {});
  const auto loss = [&] {
    return -model->score(batch).gather(-1, batch.fact("target").unsqueeze(-1)).mean().item<double>();
  };
  const double own = loss();
  EXPECT_LT(own, 0.2);  // every position finds itself
  batch.facts[kPlace] = at::arange(60).unsqueeze(0);
  EXPECT_EQ(loss(), own);
  head.retriever().exclude({{0, 0, 60}});
  EXPECT_GT(loss(), 2);
  batch.facts[kPlace] = at::arange(60).unsqueeze(0) + 1000;
  EXPECT_EQ(loss(), own);
}

TEST(Retriever, WhereNothingElseIsLeftTheBaseAnswers) {
  const auto model = tiny("knn_lm"), base = tiny("rope");
  auto& head = dynamic_cast<KnnLm&>(model->head());
  head.remember(at::randn({1, model->size().width}), at::zeros({1}, at::kLong));
  head.retriever().exclude({{0, 0, 1}});
  Batch batch = random_batch(1, 2, model->size().vocabulary);
  batch.facts[kPlace] = at::arange(2).unsqueeze(0);  // the second may use the only entry
  const Tensor got = model->score(batch), want = base->score(batch).log_softmax(-1);
  EXPECT_LT(difference(got.select(1, 0), want.select(1, 0)), 1e-6);
  EXPECT_GT(difference(got.select(1, 1), want.select(1, 1)), 1e-2);
}

TEST(Retriever, TuningLeavesWhatWasSet) {
  const auto model = tiny("knn_lm");
  auto& head = dynamic_cast<KnnLm&>(model->head());
  head.tune({5, 0.5, 2, "", 0, 0}, {"lambda"});
  EXPECT_EQ(head.options().k, 5);
  EXPECT_EQ(head.options().lambda, 0.25);
  EXPECT_EQ(head.options().temperature, 2);
}

}  // namespace
}  // namespace kinfolk
