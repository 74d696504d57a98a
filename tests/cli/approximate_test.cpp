// bench approximate: a table, JSON and charts of a small run, and what is refused.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

class ApproximateCommand : public ProgramTest {};

TEST_F(ApproximateCommand, MeasuresARun) {
  ASSERT_EQ(train("rope", "run", {"--tokens", "128"}).status, 0);
  const std::vector<std::string> common = {"bench",   "approximate", "run", "--data",    "book.txt",
                                           "--whole", "--length",    "48",  "--windows", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return run(more);
  };
  const ProgramResult table = with({"--only", "window", "lsh", "--out", "errors.svg"});
  ASSERT_EQ(table.status, 0) << table.err;
  for (const char* part :
       {"\nwindow       keys          16 ", "\nwindow       keys          48    0.0000",
        "\nlsh          rounds        16 ", "keys are the queries' directions", "exact, all keys alike: "}) {
    EXPECT_TRUE(has(table.out, part)) << part << " in\n" << table.out;
  }
  EXPECT_TRUE(has(read("errors.svg"), ">rounds<"));
  const ProgramResult json = with({"--only", "vq", "mean", "--json"});
  ASSERT_EQ(json.status, 0) << json.err;
  const auto out = nlohmann::json::parse(json.out);
  EXPECT_EQ(out["windows"], 2);
  EXPECT_EQ(out["length"], 48);
  ASSERT_FALSE(out["layers"].empty());
  for (const auto& row : out["rows"]) {
    EXPECT_EQ(row["by_layer"].size(), out["layers"].size());
    EXPECT_EQ(row.contains("to_the_model"), row["form"] == "vq") << row;
    EXPECT_GE(row["error"].get<double>(), 0) << row;
  }
  EXPECT_EQ(with({"--only", "vq", "--json", "--seed", "3"}).out, with({"--only", "vq", "--json", "--seed", "3"}).out);

  const ProgramResult unknown = with({"--only", "windo"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_TRUE(has(unknown.err, "window")) << unknown.err;
  const ProgramResult long_text = run({"bench", "approximate", "run", "--data", "book.txt", "--length", "100M"});
  EXPECT_EQ(long_text.status, 1) << long_text.err;
  EXPECT_TRUE(has(long_text.err, "windows of 100000000 bytes")) << long_text.err;
}

TEST_F(ApproximateCommand, WantsPlainAttention) {
  ASSERT_EQ(train("deltanet", "run", {"--tokens", "128"}).status, 0);
  const ProgramResult ran = run({"bench", "approximate", "run", "--data", "book.txt", "--whole", "--windows", "1"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_TRUE(has(ran.err, "plain causal softmax attention")) << ran.err;
}

}  // namespace
}  // namespace kinfolk
