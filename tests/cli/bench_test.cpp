// bench attend, scan, memory: a table or JSON, and what is refused.
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

class BenchCommand : public ProgramTest {};

TEST_F(BenchCommand, AttendPrintsATable) {
  const ProgramResult ran = run({"bench", "attend", "dense", "growth", "--lengths", "64,129"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  for (const char* part : {"1 thread, CPU time", "\ndense\n", "causal, forward", "causal, with backward", "SDPA",
                           " 64 ", " 129 ", "GFLOP/s", "\ngrowth\n", "a token at 64", "output + 32 MiB"}) {
    EXPECT_TRUE(has(ran.out, part)) << part << " in\n" << ran.out;
  }
  for (const char* part : {"\npatterns\n", "nan", "inf", ">=", "<="}) {  // goals are for other lengths
    EXPECT_FALSE(has(ran.out, part)) << part << " in\n" << ran.out;
  }
}

/// The groups of the rows that were printed as JSON; each row is a measure of something.
std::set<std::string> groups_of(const ProgramResult& ran) {
  EXPECT_EQ(ran.status, 0) << ran.err;
  std::set<std::string> groups;
  for (const auto& row : nlohmann::json::parse(ran.out, nullptr, false)) {
    groups.insert(row["group"].get<std::string>());
    EXPECT_GE(row["ours"].get<double>(), 0) << row;
    EXPECT_GE(row["ratio"].get<double>(), 0) << row;
    EXPECT_FALSE(row.contains("goal")) << row;
    if (row["unit"] != "s") continue;
    EXPECT_GT(row["ours"].get<double>(), 0) << row;
    EXPECT_GT(row["theirs"].get<double>(), 0) << row;
    EXPECT_GT(row["ratio"].get<double>(), 0) << row;
    EXPECT_GE(row["rounds"].get<int>(), 3) << row;
  }
  return groups;
}

TEST_F(BenchCommand, AttendRunsEveryGroup) {
  const ProgramResult ran = run(
      {"bench", "attend", "bfloat16", "bias", "rerope", "window", "patterns", "decode", "--lengths", "96", "--json"});
  EXPECT_EQ(groups_of(ran), (std::set<std::string>{"bfloat16", "bias", "rerope", "window", "patterns", "decode"}));
  for (const char* what : {"alibi, forward", "t5, forward", "kerple, with backward", "xl, with backward",
                           "rerope, a step", "strided 128, forward", "fixed 128, 8 columns, forward"}) {
    EXPECT_TRUE(has(ran.out, what)) << what << " in\n" << ran.out;
  }
}

TEST_F(BenchCommand, ScanRunsEveryGroup) {
  EXPECT_EQ(groups_of(run({"bench", "scan", "attention", "plain", "--lengths", "48", "--json"})),
            (std::set<std::string>{"attention", "plain"}));
  const ProgramResult ran = run({"bench", "scan", "growth", "decode", "accuracy", "--lengths", "32,64", "--json"});
  EXPECT_EQ(groups_of(ran), (std::set<std::string>{"growth", "decode", "accuracy"}));
  for (const auto& row : nlohmann::json::parse(ran.out, nullptr, false)) {
    if (row["group"] == "accuracy") EXPECT_LT(row["ours"].get<double>(), 1e-5) << row;
  }
}

TEST_F(BenchCommand, MemoryRunsEveryGroup) {
  const ProgramResult ran = run({"bench", "memory", "--lengths", "300", "--json"});
  EXPECT_EQ(groups_of(ran), (std::set<std::string>{"transformer_xl", "compressive", "reach"}));
  for (const auto& row : nlohmann::json::parse(ran.out, nullptr, false)) {
    // A state is far smaller where most of the reach is compressed; recurrence spares most of the work.
    if (row["unit"] == "B") EXPECT_LT(row["ratio"].get<double>(), 0.8) << row;
    if (row["group"] == "transformer_xl") EXPECT_GT(row["ratio"].get<double>(), 10) << row;
  }
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
