// Datastores by command: built, added to, searched, tuned, refused; and the gate that learns from one.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

class DatastoreCommand : public ProgramTest {
 protected:
  ProgramResult fine(const std::vector<std::string>& words) const {
    const ProgramResult ran = run(words);
    EXPECT_EQ(ran.status, 0) << words[1] << ": " << ran.err;
    return ran;
  }
  ProgramResult build(const std::string& from, const std::string& out,
                      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"datastore", "build", from, "--data", "book.txt", "--out", out};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  double bits(const std::string& from, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"eval", from, "--lengths", "32", "--tokens", "512", "--json"};
    if (std::find(more.begin(), more.end(), "--data") == more.end()) words.insert(words.end(), {"--data", "book.txt"});
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult ran = fine(words);
    return json::parse(ran.out)["lengths"][0]["bits_per_byte"].get<double>();
  }
  /// Entries of the part of a text that train learns from: its bytes, less the first.
  size_t learned_from(const std::string& file) const {
    const size_t size = read(file).size();
    return size - size / 20 - 1;
  }
  json info(const std::string& store) const { return json::parse(fine({"datastore", "info", store, "--json"}).out); }
};

TEST_F(DatastoreCommand, APlainRunRetrievesWithoutTraining) {
  ASSERT_EQ(train("rope", "run").status, 0);
  ASSERT_EQ(build("run", "d").status, 0);
  EXPECT_EQ(info("d")["entries"], learned_from("book.txt"));
  EXPECT_EQ(info("d")["type"], "float16");
  const double alone = bits("run");
  EXPECT_LT(bits("run", {"--store", "d", "--set", "head.k=16"}), alone);
  EXPECT_NEAR(bits("run", {"--store", "d", "--set", "head.lambda=0"}), alone, 1e-12);

  fine({"datastore", "index", "d"});
  EXPECT_EQ(info("d")["searches"], json({"exact", "graph"}));
  EXPECT_NEAR(bits("run", {"--store", "d", "--set", "head.search=graph"}), bits("run", {"--store", "d"}), 0.05);

  const json tuned = json::parse(fine({"datastore", "tune", "run", "--store", "d", "--valid", "book.txt", "--tokens",
                                       "512", "--k", "1,4,16", "--json"})
                                     .out);
  EXPECT_LT(tuned["bits_per_byte"], tuned["bits_per_byte_without"]);
  EXPECT_EQ(info("d")["tuned"]["k"], tuned["k"]);
  const ProgramResult used =
      fine({"eval", "run", "--store", "d", "--data", "book.txt", "--lengths", "32", "--tokens", "64"});
  EXPECT_TRUE(has(used.err, "k " + std::to_string(tuned["k"].get<int>()) + ", lambda")) << used.err;
  EXPECT_TRUE(
      has(fine({"datastore", "tune", "run", "--store", "d", "--valid", "book.txt", "--leave", "--tokens", "64"}).out,
          "--set head.k="));
  EXPECT_EQ(fine({"generate", "run", "-n", "5", "--store", "d"}).out.size(), 6u);
}

TEST_F(DatastoreCommand, TuningOnOneWindowHasNoSpread) {
  ASSERT_EQ(train("rope", "run").status, 0);
  ASSERT_EQ(build("run", "d").status, 0);
  std::vector<std::string> words = {"datastore", "tune", "run", "--store", "d", "--valid", "book.txt", "--tokens", "1"};
  const std::string said = fine(words).out;
  EXPECT_TRUE(has(said, " +- -)")) << said;
  EXPECT_FALSE(has(said, "nan")) << said;
  words.push_back("--json");
  EXPECT_TRUE(json::parse(fine(words).out).at("gain_error").is_null());
}

TEST_F(DatastoreCommand, ADomainIsAddedWithoutTraining) {
  ASSERT_EQ(train("rope", "run").status, 0);
  std::string other;
  for (int i = 0; other.size() < 6000; ++i) other += "zebra " + std::to_string(i * i % 97) + " quagga!\n";
  write("other.txt", other);
  ASSERT_EQ(build("run", "d", {"--type", "float32"}).status, 0);
  const double before = bits("run", {"--store", "d", "--data", "other.txt"});
  const ProgramResult added = fine({"datastore", "add", "d", "--data", "other.txt"});
  const auto both = std::to_string(learned_from("book.txt") + learned_from("other.txt"));
  EXPECT_TRUE(has(added.out, both + " entries")) << added.out;
  EXPECT_LT(bits("run", {"--store", "d", "--data", "other.txt"}), before - 0.3);
  std::filesystem::rename(folder / "run", folder / "moved");
  expect_refusal(run({"datastore", "add", "d", "--data", "other.txt"}), 2, {"[datastore]", "run", "--run RUN"});
  EXPECT_EQ(run({"datastore", "add", "d", "--data", "other.txt", "--run", "moved"}).status, 0);
}

TEST_F(DatastoreCommand, WhatIsScoredFindsNothingOfItsOwn) {
  ASSERT_EQ(train("rope", "run").status, 0);
  ASSERT_EQ(build("run", "train").status, 0);
  ASSERT_EQ(build("run", "all", {"--whole"}).status, 0);
  const std::vector<std::string> sharp = {"--set",           "head.k=1", "--set",
                                          "head.lambda=0.9", "--set",    "head.temperature=0.01"};
  const auto with = [&](const std::string& store) {
    std::vector<std::string> words = sharp;
    words.insert(words.end(), {"--store", store});
    return bits("run", words);
  };
  EXPECT_NEAR(with("all"), with("train"), 0.35);  // the rest of the held-out part may still be found
  const ProgramResult said = run({"eval", "run", "--data", "book.txt", "--store", "all", "--lengths", "32"});
  EXPECT_TRUE(has(said.err, "left out at its place")) << said.err;
}

TEST_F(DatastoreCommand, RefusesWhatCannotBe) {
  ASSERT_EQ(train("rope", "run").status, 0);
  ASSERT_EQ(train("rope", "other", {"--seed", "2"}).status, 0);
  ASSERT_EQ(build("run", "d", {"--tokens", "500"}).status, 0);
  EXPECT_EQ(info("d")["entries"], 500);
  expect_refusal(run({"eval", "other", "--data", "book.txt", "--store", "d"}), 1,
                 {"[datastore] d", "fingerprint", "another"});
  expect_refusal(run({"datastore", "add", "d", "--data", "book.txt", "--run", "other"}), 1, {"fingerprint"});
  expect_refusal(build("run", "d"), 2, {"[--out] d:", "found a datastore", "datastore add"});
  expect_refusal(run({"datastore", "info", "run"}), 1, {"[datastore] run", "without manifest.json"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--store", "book.txt"}), 2, {"[--store]", "book.txt"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--store", "d", "--set", "head.search=graph"}), 1,
                 {"expected a graph", "datastore index"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--store", "d", "--set", "head.k=0"}), 2, {"head.k"});
  expect_refusal(run({"datastore", "build", "run", "--data", "book.txt", "--out", "e", "--type", "int8"}), 2,
                 {"--type"});
  expect_refusal(run(training("spalm", "gate", {"--store", "d"})), 2, {"[--store]", "--from"});
  expect_refusal(run(training("rope", "gate", {"--from", "run", "--store", "d"})), 2, {"[--store]", "spalm", "rope"});
  std::filesystem::resize_file(folder / "d/part-00000.keys", 100);
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--store", "d"}), 1,
                 {"part-00000.keys", "found one of 100"});
}

TEST_F(DatastoreCommand, AGateLearnsAboveAFrozenBase) {
  const std::vector<std::string> small = {"--set", "let.segment=16", "--set", "let.memory=16"};
  ASSERT_EQ(train("transformer_xl", "base", small).status, 0);
  ASSERT_EQ(build("base", "d").status, 0);
  std::vector<std::string> words = {"train",           "spalm",    "--from",       "base", "--store",  "d",
                                    "--data",          "book.txt", "--out",        "gate", "--tokens", "5k",
                                    "--learning-rate", "0.05",     "--eval-every", "1000"};
  words.insert(words.end(), small.begin(), small.end());
  const ProgramResult ran = fine(words);
  EXPECT_TRUE(has(ran.out, "16 parameters")) << ran.out;  // the gate of width 16, and nothing else
  const double base = bits("base"), gate = bits("gate", {"--store", "d"});
  EXPECT_NEAR(bits("gate", {"--store", "none"}), base, 1e-9);  // below the gate nothing has moved
  EXPECT_LT(gate, base + 0.2);
  EXPECT_NE(gate, base);
  words.insert(words.end(), {"--resume", "auto"});
  words[11] = "6k";
  EXPECT_EQ(run(words).status, 0);
}

}  // namespace
}  // namespace kinfolk
