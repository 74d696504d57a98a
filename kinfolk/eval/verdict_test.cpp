#include "kinfolk/eval/verdict.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kinfolk {
namespace {

Report report_of(std::vector<std::pair<std::string, std::vector<double>>> results) {
  Report report;
  for (auto& [name, bits] : results) {
    Report::Member member;
    member.name = name;
    member.final_bits = bits;
    report.members.push_back(member);
  }
  return report;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Verdict, EstimateIsMeanAndSampleDeviation) {
  const auto found = estimate({1, 2, 3, NAN});
  EXPECT_DOUBLE_EQ(found.mean, 2);
  EXPECT_DOUBLE_EQ(found.spread, 1);
  EXPECT_EQ(found.seeds, 3);
  EXPECT_EQ(found.diverged, 1);
  EXPECT_TRUE(std::isnan(estimate({2}).spread));
  EXPECT_TRUE(std::isnan(estimate({}).mean));
}

TEST(Verdict, ClearWinnerOverSeeds) {
  const auto found = verdict(report_of({{"slow", {2.50, 2.51, 2.49}}, {"quick", {2.30, 2.31, 2.29}}}));
  EXPECT_EQ(found.order, (std::vector<int64_t>{1, 0}));
  EXPECT_TRUE(found.tied.empty());
  EXPECT_TRUE(
      has(found.sentence, "quick is best with 2.300 bits per byte, 0.200 bits per byte (8.0 %) below the next, slow."))
      << found.sentence;
  EXPECT_TRUE(has(found.sentence, "beyond the spread over 3 seeds")) << found.sentence;
}

TEST(Verdict, WithinTheSpreadIsATie) {
  const auto found = verdict(report_of({{"a", {2.2, 2.4}}, {"b", {2.25, 2.37}}, {"c", {9.0, 9.01}}}));
  EXPECT_EQ(found.tied, (std::vector<int64_t>{1}));
  EXPECT_TRUE(has(found.sentence, "call it a tie")) << found.sentence;
  EXPECT_TRUE(has(found.sentence, "Clearly behind is the next, c, by ")) << found.sentence;
  EXPECT_FALSE(has(found.sentence, "is best")) << found.sentence;
}

TEST(Verdict, OneRunEachSaysSo) {
  auto report = report_of({{"a", {2.30}}, {"b", {2.31}}});
  EXPECT_TRUE(has(verdict(report).sentence, "one run each"));
  report.members[0].final_error = report.members[1].final_error = 0.01;
  EXPECT_EQ(verdict(report).tied.size(), 1u);
  report.members[1].final_bits = {2.5};
  EXPECT_TRUE(verdict(report).tied.empty());
  EXPECT_TRUE(has(verdict(report).sentence, "another seed may rank them otherwise"));
}

TEST(Verdict, DivergedRunsAreNamedAndComeLast) {
  const auto found = verdict(report_of({{"broken", {NAN}}, {"half", {2.0, HUGE_VAL}}}));
  EXPECT_EQ(found.order, (std::vector<int64_t>{1, 0}));
  ASSERT_EQ(found.notes.size(), 2u);
  EXPECT_TRUE(has(found.notes[0], "broken: 1 of 1 runs diverged"));
  EXPECT_TRUE(has(found.notes[1], "half: 1 of 2 runs diverged"));
  EXPECT_EQ(verdict(Report()).sentence, "No member has a result.");
}

TEST(Verdict, NotesOnLengthCostAndBaseline) {
  auto report = report_of({{"a", {2.3}}, {"b", {2.4}}});
  report.trained_length = 512;
  report.members[0].by_length = {{512, 2.3, 0.01, "stream"}, {4096, 3.5, 0.01, "stream"}};
  report.members[1].by_length = {{512, 2.4, 0.01, "stream"}, {4096, 2.2, 0.01, "stream"}};
  report.members[0].speed = {{512, 1000, 2000, 1 << 20}};
  report.members[1].speed = {{512, 500, 2000, 1 << 21}};
  report.baselines = {{"order 3", 2.2}};
  const auto found = verdict(report);
  ASSERT_EQ(found.notes.size(), 3u);
  EXPECT_TRUE(has(found.notes[0], "at 4096, 8 times the trained 512, b reads best (2.200) and a worst (3.500)"));
  EXPECT_TRUE(has(found.notes[1], "a trains fastest (1000 tokens/s) and b slowest (500)."));
  EXPECT_TRUE(has(found.notes[1], "a needs the least memory (1 MiB), b the most (2 MiB)."));
  EXPECT_TRUE(has(found.notes[2], "No member beats the simple baseline order 3"));
}

}  // namespace
}  // namespace kinfolk
