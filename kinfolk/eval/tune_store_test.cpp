#include "kinfolk/eval/tune_store.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/remember.h"
#include "kinfolk/nn/fingerprint.h"
#include "kinfolk/nn/head/knn_lm.h"
#include "kinfolk/nn/retrieve/testing.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

/// Words of a language with a few rules, so that neighbours can know something.
Bytes words(size_t count, uint32_t state) {
  Bytes out;
  uint32_t word = 0;
  while (out.size() < count) {
    state = state * 1664525u + 1013904223u;
    word = (word * 5 + (state >> 28)) % 11;
    for (uint32_t i = 0; i < 3 + word % 3; ++i) out.push_back(static_cast<uint8_t>((word * 7 + i * i) % 28));
    out.push_back(28);
  }
  out.resize(count);
  return out;
}

struct Built {
  TemporaryFolder folder;
  std::shared_ptr<Model> model = tiny("knn_lm");
  std::shared_ptr<const Datastore> store;
  explicit Built(const std::vector<Bytes>& texts, const char* type = "float32") {
    StoreManifest about = manifest_of(model->size().width, model->size().vocabulary, type);
    about.model = fingerprint(*model);
    DatastoreWriter writer(folder / "d", about);
    for (const auto& text : texts) store_document(*model, "a text", text, 1 << 20, writer);
    writer.commit();
    store = Datastore::open(folder / "d");
  }
  KnnLm& head() { return dynamic_cast<KnnLm&>(model->head()); }
};

ScoreOptions options_of(int64_t length, int64_t windows) {
  ScoreOptions out;
  out.lengths = {length}, out.tokens = length * windows, out.mode = "blocks";
  return out;
}

TEST(Remember, HiddenStatesAreThoseOfTheTextInItsOrder) {
  for (const char* recipe : {"rope", "transformer_xl"}) {  // in windows, and with a state
    const auto model = tiny(recipe);
    const int64_t context = model->size().context;
    for (const int64_t length : {int64_t{2}, context / 3, context, context + 1, 3 * context + 7, 13 * context}) {
      const Bytes text = words(static_cast<size_t>(length), 1);
      std::vector<Tensor> hidden, next;
      each_hidden(*model, text, length + 5,
                  [&](const Tensor& h, const Tensor& n) { hidden.push_back(h.clone()), next.push_back(n.clone()); });
      const Tensor all = at::cat(hidden), tokens = at::cat(next);
      ASSERT_EQ(all.size(0), length - 1) << recipe << length;
      EXPECT_TRUE(tokens.equal(gather_tokens(text, {1}, 0, length - 1)[0])) << recipe << length;
      const Batch batch{gather_tokens(text, {0}, 0, std::min(context, length - 1)), {}};
      Pass pass{batch};
      EXPECT_LT(difference(all.narrow(0, 0, batch.tokens.size(1)), model->hidden(pass)[0]), 1e-5) << recipe << length;
      if (length <= 2 * context) continue;
      // Any other state has at least half a window before it; the last window ends with the text.
      const Batch end{gather_tokens(text, {length - 1 - context}, 0, context), {}};
      Pass last{end};
      if (std::string(recipe) == "rope") {
        EXPECT_LT(difference(all[-1], model->hidden(last)[0][-1]), 1e-5) << length;
      }
    }
    int64_t read = 0;
    each_hidden(*model, words(1000, 1), 300, [&](const Tensor& h, const Tensor&) { read += h.size(0); });
    EXPECT_EQ(read, 300);
  }
}

TEST(Datastores, ScoringATextThatIsStoredFindsNothingOfItsOwn) {
  const Bytes text = words(3000, 3), other = words(3000, 4);
  Built with({other, text}), without({other});
  const auto bits = [&](Built& built, bool excluded) {
    attach_store(*built.model, built.store);
    built.head().tune({1, 0.9, 1, "", 0, 0}, {});
    if (excluded) built.head().retriever().exclude(own_entries(*built.store, text));
    return score(*built.model, text, options_of(96, 1)).lengths.front().bits;  // read as it was stored
  };
  const double own = bits(with, false), excluded = bits(with, true), never = bits(without, true);
  EXPECT_LT(own, 0.2 * excluded) << "its own entries tell every byte";
  EXPECT_GT(excluded, 0.7 * never) << never;  // what is left of it is text like any other
  EXPECT_LT(excluded, 1.3 * never);
}

TEST(Datastores, AStoreOnDiskScoresLikeTheSameInMemory) {
  const Bytes text = words(2500, 5), valid = words(900, 6);
  Built built({text});
  fill_store(*built.model, text, 1 << 20);
  EXPECT_EQ(built.head().stored(), 2499);
  const double memory = score(*built.model, valid, options_of(96, 4)).lengths.front().bits;
  attach_store(*built.model, built.store);
  EXPECT_NEAR(score(*built.model, valid, options_of(96, 4)).lengths.front().bits, memory, 1e-9);
}

TEST(Datastores, KeysOfOtherSettingsAndChangedFilesAreRefused) {
  const auto expect_refused = [](Model& model, const Datastore& store, const std::string& what) {
    try {
      check_keys(model, store);
      ADD_FAILURE() << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("[datastore] "), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("that are others"), std::string::npos) << error.what();
    }
  };
  for (const char* type : {"float32", "float16", "bfloat16"})
    for (const size_t length : {20, 90, 2000}) {  // in part of a window, in one, in many
      Built built({words(length, 1), words(500, 2)}, type);
      EXPECT_NO_THROW(check_keys(*built.model, *built.store)) << type << " " << length;
    }
  for (const std::string base : {"rope", "transformer_xl"}) {
    const std::string other = base == "rope" ? "layers.0.branches.0.pattern=causal & window(3)" : "let.memory=24";
    Size size = tiny(base.c_str())->size();
    Recipe recipe = load_recipe(base);
    const auto model = Model::make(recipe, size, 1);
    override_recipe(recipe, other);
    const auto changed = Model::make(recipe, size, 1);
    ASSERT_EQ(fingerprint(*model), fingerprint(*changed)) << "no weight says so";
    TemporaryFolder folder;
    StoreManifest about = manifest_of(size.width, size.vocabulary);
    about.model = fingerprint(*changed);
    {
      DatastoreWriter writer(folder / "d", about);
      store_document(*changed, "a text", words(2000, 1), 1 << 20, writer);
      writer.commit();
    }
    const auto store = Datastore::open(folder / "d");
    EXPECT_NO_THROW(check_keys(*changed, *store)) << base;
    expect_refused(*model, *store, base);
  }
  Built built({words(300, 1)});
  const auto overwrite = [&](const char* part, std::vector<char> bytes) {
    std::fstream file(built.folder / "d/part-00000." + part, std::ios::in | std::ios::out | std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  overwrite("keys", std::vector<char>(20000, '\xff'));
  expect_refused(*built.model, *Datastore::open(built.folder / "d"), "keys that are no numbers");
  overwrite("tokens", {'\0', '\0', '\1', '\0'});
  EXPECT_THROW(Datastore::open(built.folder / "d")->token(0), Error) << "no token of the vocabulary";
}

TEST(TuneStore, FindsWhatScoringConfirms) {
  const Bytes text = words(4000, 5), valid = words(1200, 6);
  Built built({text});
  TuneOptions options;
  options.tokens = 96 * 6;
  const auto search = exact_search(built.store);
  for (const char* metric : {"squared", "l2"}) {
    options.metric = metric;
    const TuneResult got = tune_store(*built.model, *built.store, *search, valid, options);
    EXPECT_EQ(got.tokens, 96 * 6);
    EXPECT_EQ(got.tried.size(), 9u * 13 * 9);
    EXPECT_LT(got.best.bits, 0.9 * got.before) << "an untrained model has much to learn from a store";
    EXPECT_EQ(got.by_k().size(), 9u);
    EXPECT_EQ(got.by_temperature().size(), 9u);
    EXPECT_EQ(got.by_lambda().size(), 13u);
    double lowest = got.before;
    for (const auto& point : got.tried) lowest = std::min(lowest, point.bits);
    EXPECT_EQ(lowest, got.best.bits);
    // The same windows scored through the head.
    KnnLm::Options head;
    head.k = got.best.k, head.lambda = got.best.lambda, head.temperature = got.best.temperature, head.metric = metric;
    const auto model = tiny("rope");
    model->wrap_head([&](std::shared_ptr<Head> base) { return std::make_shared<KnnLm>(head, base, model->size()); });
    EXPECT_NEAR(score(*model, valid, options_of(96, 6)).lengths.front().bits, got.before, 1e-6);
    attach_store(*model, built.store);
    EXPECT_NEAR(score(*model, valid, options_of(96, 6)).lengths.front().bits, got.best.bits, 1e-6) << metric;
  }
  EXPECT_THROW(tune_store(*built.model, *built.store, *search, Bytes(1, 3), options), Error);
}

TEST(TuneStore, OnTheStoredTextItselfOwnEntriesDoNotCount) {
  const Bytes text = words(3000, 7);
  Built built({text});
  TuneOptions options;
  options.tokens = 96 * 6, options.ks = {1}, options.lambdas = {0.9}, options.temperatures = {1};
  const auto got = tune_store(*built.model, *built.store, *exact_search(built.store), text, options);
  EXPECT_GT(got.tried.front().bits, 0.3);  // with its own entries: -log2 0.9 and little more
}

}  // namespace
}  // namespace kinfolk
