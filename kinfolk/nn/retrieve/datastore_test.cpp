#include "kinfolk/nn/retrieve/datastore.h"

#include <sys/wait.h>
#include <csignal>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/fingerprint.h"
#include "kinfolk/nn/retrieve/retriever.h"
#include "kinfolk/nn/retrieve/testing.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Datastore, GivesBackWhatWasWritten) {
  for (const char* type : {"float32", "float16", "bfloat16"}) {
    const TemporaryFolder folder;
    const Tensor keys = at::randn({300, 6}), tokens = at::randint(0, 256, {300}, at::kLong);
    const auto store = stored(folder / "d", keys, tokens, type);
    EXPECT_EQ(store->size(), 300);
    EXPECT_EQ(store->about().type, type);
    const Tensor all = at::arange(300).view({3, 100});
    EXPECT_TRUE(store->keys(all).equal(keys.to(scalar_type(key_type(type))).to(at::kFloat).view({3, 100, 6}))) << type;
    EXPECT_TRUE(store->tokens(all).equal(tokens.view({3, 100})));
    const auto block = store->block(250, 100);
    EXPECT_EQ(block.keys.size(0), 50);
    EXPECT_TRUE(block.keys.to(at::kFloat).equal(store->keys(at::arange(250, 300))));
    EXPECT_LT((block.squares - block.keys.to(at::kFloat).square().sum(-1)).abs().max().item<double>(), 1e-5);
    EXPECT_EQ(store->bytes(), 300 * (6 * (std::string(type) == "float32" ? 4 : 2) + 8));
  }
}

TEST(Datastore, GrowsByParts) {
  const TemporaryFolder folder;
  const Tensor keys = at::randn({50, 4}), tokens = at::arange(50);
  stored(folder / "d", keys.slice(0, 0, 20), tokens.slice(0, 0, 20));
  const auto older = Datastore::open(folder / "d");
  const auto first = names_in(folder / "d");
  stored(folder / "d", keys.slice(0, 20, 21), tokens.slice(0, 20, 21));
  const auto store = stored(folder / "d", keys.slice(0, 21), tokens.slice(0, 21));
  EXPECT_EQ(store->size(), 50);
  EXPECT_TRUE(store->keys(at::arange(50)).equal(keys));
  EXPECT_TRUE(store->tokens(at::arange(49, -1, -1)).equal(at::arange(49, -1, -1)));
  EXPECT_EQ(store->block(20, 99).keys.size(0), 1);  // a block ends where its part does
  const auto texts = store->texts();
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[2].first, 21);
  EXPECT_EQ(texts[2].count, 29);
  EXPECT_EQ(texts[2].begin, 7);
  EXPECT_TRUE(older->keys(at::arange(20)).equal(keys.slice(0, 0, 20)));  // who reads is not disturbed
  for (const auto& name : first) EXPECT_TRUE(fs::exists(fs::path(folder / "d") / name)) << name;
}

TEST(Datastore, AWriterThatDiesLeavesTheStoreAsItWas) {
  const TemporaryFolder folder;
  const Tensor keys = at::randn({20, 4}), tokens = at::arange(20);
  stored(folder / "d", keys, tokens);
  const auto before = names_in(folder / "d");
  for (const bool fresh : {false, true}) {
    const std::string where = folder / (fresh ? "e" : "d");
    const pid_t child = fork();
    if (child == 0) {
      DatastoreWriter writer(where, fresh ? manifest_of(4) : read_manifest(where));
      writer.begin("another", 1);
      writer.append(keys, tokens);
      raise(SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_GT(names_in(where).size(), fresh ? 0u : before.size()) << "something was half written";
    if (fresh) {
      EXPECT_THROW(Datastore::open(where), Error);
    } else {
      EXPECT_TRUE(Datastore::open(where)->keys(at::arange(20)).equal(keys));
    }
    stored(where, keys, tokens);  // the next writer clears up
    EXPECT_EQ(Datastore::open(where)->size(), fresh ? 20 : 40);
    EXPECT_EQ(names_in(where).size(), fresh ? 4u : 7u);
  }
  {
    DatastoreWriter writer(folder / "d", read_manifest(folder / "d"));  // one that ends without `commit`
    writer.begin("another", 1);
    writer.append(keys, tokens);
    EXPECT_THROW(DatastoreWriter(folder / "d", read_manifest(folder / "d")), Error) << "two at once";
  }
  EXPECT_EQ(names_in(folder / "d").size(), 7u);
}

TEST(Datastore, RefusesWhatIsCutShortForeignOrInTheWay) {
  const TemporaryFolder folder;
  EXPECT_THROW(Datastore::open(folder / "none"), Error);
  const auto expect_said = [&](const std::string& word) {
    try {
      Datastore::open(folder / "d");
      ADD_FAILURE() << "expected a refusal about " << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  const Tensor keys = at::randn({20, 4}), tokens = at::arange(20);
  stored(folder / "d", keys, tokens);
  EXPECT_THROW(DatastoreWriter(folder / "d", manifest_of(4)), UsageError);
  for (const char* kind : {".keys", ".tokens", ".squares"}) {
    const std::string path = folder / (std::string("d/part-00000") + kind);
    const auto bytes = fs::file_size(path);
    fs::resize_file(path, bytes - 1);
    expect_said(path);
    fs::resize_file(path, bytes);
  }
  const std::string manifest = folder / "d/manifest.json";
  std::ifstream in(manifest);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  const std::vector<std::pair<std::string, std::string>> faults = {{"kinfolk-datastore-1", "kinfolk-datastore-9"},
                                                                   {"\"count\": 20", "\"count\": -20"},
                                                                   {"\"width\": 4", "\"width\": \"4\""},
                                                                   {"part-00000", "part-../../x"},
                                                                   {"\"first\": 0", "\"first\": 3"},
                                                                   {"float32", "float8"},
                                                                   {"{", "["}};
  for (const auto& [from, to] : faults) {
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos) << from;
    for (size_t at = 0; (at = bad.find(from, at)) != std::string::npos; at += to.size())
      bad.replace(at, from.size(), to);
    std::ofstream(manifest) << bad;
    EXPECT_THROW(Datastore::open(folder / "d"), Error) << to;
  }
  std::ofstream(manifest) << good;
  EXPECT_EQ(Datastore::open(folder / "d")->size(), 20);
  fs::create_directories(folder / "f");
  std::ofstream(folder / "f/mine.txt") << "mine";
  EXPECT_THROW(DatastoreWriter(folder / "f", manifest_of(4)), UsageError);
  EXPECT_EQ(names_in(folder / "f").size(), 1u);
}

TEST(Datastore, RefusesEntriesThatDoNotFit) {
  const TemporaryFolder folder;
  DatastoreWriter writer(folder / "d", manifest_of(4, 10, "float16"));
  EXPECT_THROW(writer.append(at::zeros({1, 4}), at::zeros({1}, at::kLong)), Error);  // of no text
  writer.begin("a text", 0);
  EXPECT_THROW(writer.append(at::zeros({1, 3}), at::zeros({1}, at::kLong)), Error);
  EXPECT_THROW(writer.append(at::zeros({2, 4}), at::zeros({1}, at::kLong)), Error);
  EXPECT_THROW(writer.append(at::zeros({1, 4}), at::full({1}, 10, at::kLong)), Error);
  EXPECT_THROW(writer.append(at::zeros({1, 4}), at::full({1}, -1, at::kLong)), Error);
  EXPECT_THROW(writer.append(at::full({1, 4}, 1e6), at::zeros({1}, at::kLong)), Error);  // infinite in float16
  EXPECT_THROW(writer.append(at::full({1, 4}, NAN), at::zeros({1}, at::kLong)), Error);
  writer.append(at::zeros({0, 4}), at::zeros({0}, at::kLong));
  writer.commit();
  EXPECT_EQ(Datastore::open(folder / "d")->size(), 0);
}

TEST(Datastore, IsRefusedByAnotherModel) {
  const TemporaryFolder folder;
  const auto model = tiny("knn_lm"), other = tiny("knn_lm");
  const int64_t width = model->size().width;
  StoreManifest about = manifest_of(width, model->size().vocabulary);
  about.model = fingerprint(*model);
  DatastoreWriter writer(folder / "d", about);
  writer.begin("a text", 0);
  writer.append(at::randn({10, width}), at::arange(10));
  writer.commit();
  const auto store = Datastore::open(folder / "d");
  attach_store(*model, store);
  EXPECT_EQ(dynamic_cast<Retrieves&>(model->head()).retriever().stored(), 10);
  {
    at::NoGradGuard guard;
    other->weights().front().second.view(-1)[3] += 1e-3;
  }
  try {
    attach_store(*other, store);
    FAIL() << "expected a refusal";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(fingerprint(*other)), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(about.model), std::string::npos) << error.what();
  }
  EXPECT_THROW(attach_store(*tiny("rope"), store), UsageError);  // no head that retrieves
}

TEST(Datastore, KeepsWhatItWasTunedTo) {
  const TemporaryFolder folder;
  stored(folder / "d", at::randn({5, 4}), at::arange(5));
  StoreManifest about = read_manifest(folder / "d");
  EXPECT_EQ(about.tuned.k, 0);
  about.tuned = {8, 0.3, 4.5, "valid.txt", 2.1, 2.4};
  write_manifest(folder / "d", about);
  const Tuned got = Datastore::open(folder / "d")->about().tuned;
  EXPECT_EQ(got.k, 8);
  EXPECT_EQ(got.lambda, 0.3);
  EXPECT_EQ(got.temperature, 4.5);
  EXPECT_EQ(got.text, "valid.txt");
}

}  // namespace
}  // namespace kinfolk
