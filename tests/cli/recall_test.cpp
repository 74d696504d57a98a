// Tasks of recall, trained on, scored and compared; and budgets of states.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

constexpr const char* kTask = "recall:mqar,vocabulary=20,length=16,pairs=2";

class RecallOf : public ProgramTest {
 protected:
  ProgramResult train_on(const std::string& task, const std::string& out,
                         const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"train", "deltanet", "--data",   task, "--size",  "size.toml",
                                      "--out", out,        "--tokens", "4k", "--lanes", "4"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
};

TEST_F(RecallOf, TrainEvalAndCompare) {
  const ProgramResult trained = train_on(kTask, "run");
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_TRUE(has(trained.out, "of them right")) << trained.out;
  EXPECT_TRUE(has(trained.err, "accuracy")) << trained.err;
  EXPECT_TRUE(has(read("run/log.jsonl"), "\"accuracy\""));
  EXPECT_TRUE(has(read("run/size.toml"), "vocabulary = 20"));

  const ProgramResult scored = run({"eval", "run", "--data", kTask, "--tokens", "800", "--json"});
  ASSERT_EQ(scored.status, 0) << scored.err;
  const json found = json::parse(scored.out);
  EXPECT_EQ(found["examples"], 50);
  EXPECT_EQ(found["answers"], 100);
  EXPECT_GE(found["accuracy"].get<double>(), 0);
  EXPECT_LE(found["accuracy"].get<double>(), 1);
  const ProgramResult longer = run({"eval", "run", "--data", "recall:mqar,vocabulary=40,length=32,pairs=4"});
  expect_refusal(longer, 2, {"20 tokens", "40"});
  EXPECT_EQ(run({"eval", "run", "--data", "recall:mqar,vocabulary=20,length=18,pairs=3"}).status, 0);
  expect_refusal(run({"eval", "run", "--data", kTask, "--lengths", "16"}), 2, {"--lengths", "task"});

  const std::vector<std::string> comparing = {"compare", "rope", "deltanet", "--data", kTask,     "--size", "size.toml",
                                              "--out",   "cmp",  "--tokens", "2k",     "--lanes", "4"};
  const ProgramResult compared = run(comparing);
  ASSERT_EQ(compared.status, 0) << compared.err;
  EXPECT_TRUE(has(compared.out, "| rope |")) << compared.out;
  EXPECT_TRUE(has(compared.out, "| deltanet |")) << compared.out;
  EXPECT_TRUE(has(read("cmp/table.md"), "| member | right |"));
  const json report = json::parse(read("cmp/report.json"));
  ASSERT_EQ(report["members"].size(), 2u);
  const double a = report["members"][0]["parameters"], b = report["members"][1]["parameters"];
  EXPECT_NEAR(b / a, 1, 0.011);
  EXPECT_EQ(run(comparing).out, compared.out);  // nothing is trained again
}

TEST_F(RecallOf, RefusesInOneLine) {
  expect_refusal(train_on("recall:mqra", "run"), 2, {"mqra", "did you mean mqar?"});
  expect_refusal(train_on("recall:mqar,piars=2", "run"), 2, {"piars", "did you mean pairs?"});
  expect_refusal(train_on(kTask, "run", {"--valid", "book.txt"}), 2, {"[valid]"});
  expect_refusal(train_on(kTask, "run", {"--length", "8"}), 2, {"[train.length]", "16"});
  expect_refusal(run({"compare", "rope", "--data", kTask, "--size", "size.toml", "--out", "c", "--lengths", "16"}), 2,
                 {"--lengths", "task"});
  EXPECT_FALSE(exists("run"));
}

TEST_F(RecallOf, StateBudgets) {
  expect_refusal(train("rope", "run", {"--state-budget", "4k"}), 1, {"[state_budget]", "grows with the text"});
  expect_refusal(train("hgrn", "run", {"--state-budget", "4k"}), 1, {"[state_budget]", "as wide as the model"});
  expect_refusal(train("window", "run", {"--state-budget", "0"}), 2, {"[--state-budget]", "at least 1"});
  EXPECT_FALSE(exists("run"));
  const ProgramResult trained = train("window", "run", {"--state-budget", "8k", "--tokens", "512"});
  EXPECT_EQ(trained.status, 0) << trained.err;
  EXPECT_TRUE(has(read("run/recipe.toml"), "window = ")) << read("run/recipe.toml");
}

}  // namespace
}  // namespace kinfolk
