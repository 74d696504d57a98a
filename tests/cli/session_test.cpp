// Sessions of eval, texts without end, and runs that begin from others, as a user types them.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

class SessionsOf : public ProgramTest {
 protected:
  void SetUp() override { ASSERT_EQ(train("rope", "run").status, 0); }
};

TEST_F(SessionsOf, EvalKeepsALimitAndASession) {
  const std::vector<std::string> words = {"eval", "run",       "--data", "book.txt", "--lengths",
                                          "128",  "--windows", "1",      "--json"};
  const auto eval = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run(more);
  };
  const ProgramResult limited = eval({"--memory-limit", "4k"});
  ASSERT_EQ(limited.status, 0) << limited.err;
  EXPECT_TRUE(has(limited.err, "at the memory limit the newest ")) << limited.err;
  const json length = json::parse(limited.out)["lengths"][0];
  EXPECT_LE(length["state_held_bytes"].get<int64_t>(), 4000);
  EXPECT_TRUE(has(length["policy"].get<std::string>(), "newest"));
  expect_refusal(eval({"--memory-limit", "10"}), 1, {"[memory_limit]", "10"});

  ASSERT_EQ(eval({"--save-session", "read.session"}).status, 0);
  const ProgramResult from = eval({"--load-session", "read.session"});
  ASSERT_EQ(from.status, 0) << from.err;
  EXPECT_NE(json::parse(from.out)["lengths"][0]["bits_per_byte"],
            json::parse(eval({}).out)["lengths"][0]["bits_per_byte"]);
  const ProgramResult written = run({"generate", "run", "--load-session", "read.session", "-n", "5"});
  EXPECT_TRUE(has(written.err, "session of 128 bytes from read.session")) << written.err;
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--save-session", "b"}), 2,
                 {"[--save-session]", "--windows 1"});
  expect_refusal(eval({"--load-session", "read.session", "--mode", "blocks"}), 2, {"[--load-session]", "blocks"});
}

TEST_F(SessionsOf, NoSessionIsSavedWhereTheTextIsReadInBlocks) {
  ASSERT_EQ(train("gpt", "blocks").status, 0);
  ASSERT_EQ(train("reformer", "whole").status, 0);
  const auto eval = [&](const std::string& name, const std::string& length, std::vector<std::string> more) {
    std::vector<std::string> words = {"eval", name, "--data", "book.txt", "--windows", "1", "--lengths", length};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  expect_refusal(eval("blocks", "128", {"--save-session", "s"}), 2, {"[--save-session]", "a fresh state", "128"});
  for (const char* flag : {"--save-session", "--memory-limit"}) {
    expect_refusal(eval("whole", "16", {flag, "9000"}), 2, {flag, "carries a state", "reformer"});
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "s"));
  ASSERT_EQ(eval("blocks", "16", {"--save-session", "s"}).status, 0);
  const ProgramResult written = run({"generate", "blocks", "--load-session", "s", "-n", "5"});
  EXPECT_TRUE(has(written.err, "session of 16 bytes from s")) << written.err;
}

TEST_F(SessionsOf, AStoreIsReadBesideFreshStates) {
  ASSERT_EQ(train("gpt", "blocks").status, 0);
  for (const char* name : {"run", "blocks"}) {
    ASSERT_EQ(run({"datastore", "build", name, "--data", "book.txt", "--out", "d", "--tokens", "500"}).status, 0);
    const ProgramResult scored = run({"eval", name, "--data", "book.txt", "--lengths", "64", "--windows", "1",
                                      "--store", "d", "--memory-limit", "8k", "--at-limit", "refeed"});
    EXPECT_EQ(scored.status, 0) << name << ": " << scored.err;
    std::filesystem::remove_all(folder / "d");
  }
  ASSERT_EQ(run({"datastore", "build", "run", "--data", "book.txt", "--out", "d", "--tokens", "500", "--set",
                 "layers.0.branches.0.pattern=causal & window(2)"})
                .status,
            0);
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--lengths", "64", "--windows", "1", "--store", "d"}), 1,
                 {"[datastore]", "other settings"});
  expect_refusal(run({"datastore", "add", "d", "--data", "book.txt"}), 1, {"[datastore]", "other settings"});
}

TEST_F(SessionsOf, ARunBeginsFromAnother) {
  const ProgramResult next = train("qk_bias", "next", {"--from", "run", "--freeze"});
  ASSERT_EQ(next.status, 0) << next.err;
  EXPECT_TRUE(has(next.err, "tensors taken; ")) << next.err;
  EXPECT_TRUE(has(next.err, "what was taken is frozen")) << next.err;
  expect_refusal(train("rope", "other", {"--freeze"}), 2, {"[--freeze]", "--from"});
  expect_refusal(train("rope", "other", {"--from", "nowhere"}), 1, {"nowhere"});
  EXPECT_FALSE(std::filesystem::exists(folder / "other"));
}

TEST_F(SessionsOf, BenchStreamPrintsALineAMember) {
  const ProgramResult ran = run({"bench", "stream", "window", "rope", "--tokens", "3000", "--memory-limit", "400k",
                                 "--seconds", "0.1", "--json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json rows = json::parse(ran.out);
  ASSERT_EQ(rows.size(), 2u);
  for (const auto& row : rows) {
    EXPECT_LE(row["state_bytes"].get<int64_t>(), 400000);
    EXPECT_LE(row["drift"].get<double>(), 1e-4);
  }
  expect_refusal(run({"bench", "stream", "rope", "--tokens", "3000"}), 2, {"[stream]", "memory limit"});
  expect_refusal(run({"bench", "stream", "nothing"}), 2, {"nothing"});
}

}  // namespace
}  // namespace kinfolk
