// bench attend, bench scan: a table or JSON, and what is refused.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

class BenchCommand : public ProgramTest {};

TEST_F(BenchCommand, AttendPrintsATable) {
  const ProgramResult ran = run({"bench", "attend", "dense", "bias", "rerope", "growth", "--lengths", "64,129"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  for (const char* part : {"1 thread, CPU time", "\ndense\n", "causal, forward", "causal, with backward", "SDPA",
                           " 64 ", " 129 ", "GFLOP/s", "alibi, with backward", "SDPA, constant mask", "t5", "kerple",
                           "xl", "rerope, window 256", "a token at 64", "output + 32 MiB"}) {
    EXPECT_TRUE(has(ran.out, part)) << part << " in\n" << ran.out;
  }
  EXPECT_FALSE(has(ran.out, "\npatterns\n")) << ran.out;
  EXPECT_FALSE(has(ran.out, "nan")) << ran.out;
  EXPECT_FALSE(has(ran.out, "inf")) << ran.out;
}

TEST_F(BenchCommand, AttendRunsEveryGroup) {
  const ProgramResult ran =
      run({"bench", "attend", "bfloat16", "window", "patterns", "decode", "--lengths", "128", "--json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  std::set<std::string> groups;
  const auto rows = nlohmann::json::parse(ran.out);
  for (const auto& row : rows) {
    groups.insert(row["group"].get<std::string>());
    EXPECT_EQ(row["length"], 128) << row;
    EXPECT_GT(row["ours"].get<double>(), 0) << row;
    EXPECT_GT(row["theirs"].get<double>(), 0) << row;
    EXPECT_GT(row["ratio"].get<double>(), 0) << row;
    EXPECT_GE(row["rounds"].get<int>(), 3) << row;
  }
  EXPECT_EQ(groups, (std::set<std::string>{"bfloat16", "window", "patterns", "decode"}));
}

TEST_F(BenchCommand, ScanPrintsEveryGroup) {
  const ProgramResult ran = run({"bench", "scan", "--lengths", "32,48", "--json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  std::map<std::string, int> groups;
  for (const auto& row : nlohmann::json::parse(ran.out)) {
    ++groups[row["group"].get<std::string>()];
    EXPECT_GE(row["ratio"].get<double>(), 0) << row;
    EXPECT_TRUE(row["ours"].is_number()) << row;
    if (row["group"] != "accuracy") continue;
    EXPECT_LT(row["ours"].get<double>(), 1e-5) << row;
  }
  for (const char* group : {"attention", "plain", "growth", "decode", "accuracy"}) EXPECT_GE(groups[group], 4) << group;
}

TEST_F(BenchCommand, WrongUsageIsRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"bench", "attend", "dens"}, {"[bench attend]", "did you mean dense?"}},
      {{"bench", "scan", "dense"}, {"[bench scan]", "accuracy"}},
      {{"bench", "attend", "--lengths", "0"}, {"[--lengths]"}},
      {{"bench", "attend", "--lengths", "many"}, {"[--lengths]", "many"}},
      {{"bench", "scan", "--threads", "0"}, {"[--threads]", "at least 1"}},
      {{"bench", "scan", "--threads", "100000"}, {"[--threads]", "at most"}},
      {{"bench", "attend", "--size", "tiny"}, {"[--size]", "kinfolk bench attend --help"}},
      {{"bench", "attend", "--ful"}, {"did you mean --full?"}},
      {{"bench", "rope", "attend"}, {"[bench]", "rope"}},
      {{"bench", "--size", "small", "scan"}, {"[bench]", "--size"}},
      {{"bench", "rope", "--full"}, {"[--full]"}}};
  for (const auto& [words, parts] : cases) {
    std::string all;
    for (const auto& word : words) all += " " + word;
    SCOPED_TRACE("kinfolk" + all);
    expect_refusal(run(words), 2, parts);
  }
}

TEST_F(BenchCommand, HelpNamesTheRows) {
  for (const char* which : {"attend", "scan"}) {
    const ProgramResult ran = run({"bench", which, "--help"});
    EXPECT_EQ(ran.status, 0);
    for (const char* part : {"Usage: kinfolk bench", "--lengths", "--threads", "--full", "--json", "Rows:"}) {
      EXPECT_TRUE(has(ran.out, part)) << part << " in\n" << ran.out;
    }
  }
  const ProgramResult all = run({"bench", "--help"});
  EXPECT_TRUE(has(all.out, "attend")) << all.out;
  EXPECT_TRUE(has(all.out, "scan")) << all.out;
}

}  // namespace
}  // namespace kinfolk
