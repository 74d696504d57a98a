#include "kinfolk/eval/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/report_study.h"

namespace kinfolk {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Report example() {
  Report report;
  report.title = "Three members on <novels>";
  report.command = "kinfolk compare window rope --data novels --out 'a & b'";
  report.data = "six novels";
  report.budget = "10M parameters, 4M tokens";
  report.trained_length = 512;
  report.baselines = {{"order 3", 2.3}};
  for (int i = 0; i < 2; ++i) {
    Report::Member member;
    member.name = i ? "rope <script>alert(1)</script>" : "window";
    member.about = "about \"it\"";
    member.parameters = 10'000'000;
    member.final_bits = {2.1 + 0.1 * i, 2.12 + 0.1 * i};
    for (int seed = 0; seed < 2; ++seed) {
      member.curves.emplace_back();
      for (int step = 0; step < 50; ++step)
        member.curves.back().push_back({step * 1000., step * 2., 8 / (1 + 0.1 * step) + 2 + 0.1 * i + 0.01 * seed});
    }
    member.by_length = {{512, 2.1, 0.01, "stream"}, {1024, 2.0, 0.01, "stream"}};
    member.by_position = {{1, 4, 0.1}, {100, 2.2, 0.1}};
    member.speed = {{512, 1000, 2000, 1e8}, {1024, 900, 1900, 2e8}};
    member.prompt = "It is a truth <i>";
    member.sample = std::string("universally\xff\0acknowledged", 25);
    member.warnings = {"learned positions end at 512 & no further"};
    report.members.push_back(member);
  }
  report.patterns = {{"window", "sees 2", 2, 2, {1, 0, 1, 1}}};
  return report;
}

TEST(ReportPage, SaysAndShowsEverythingEscaped) {
  const auto page = html(example());
  for (const char* part :
       {"<h1>Three members on &lt;novels&gt;</h1>", "window is best with 2.110 bits per byte",
        "rope &lt;script&gt;alert(1)", "about &quot;it&quot;", "order 3", "universally\uFFFD\u2400acknowledged",
        "It is a truth &lt;i&gt;", "a &amp; b", "512 &amp; no further", "Learning by tokens", "Learning by time",
        "By evaluation length", "By position", "Training speed", "Evaluation speed", "Peak memory", "Who sees whom",
        "10M parameters, 4M tokens", "over 2 seeds"})
    EXPECT_TRUE(has(page, part)) << part;
  EXPECT_FALSE(has(page, "<script>alert"));
  EXPECT_EQ(page, html(example()));
}

TEST(ReportPage, NeedsNothingBesideIt) {
  const auto page = html(example());
  for (const char* part : {"src=", "href=", "url(", "@import", "fetch("}) EXPECT_FALSE(has(page, part)) << part;
  // The one address is the name of SVG's namespace.
  std::string rest = page;
  const std::string name = "http://www.w3.org/2000/svg";
  for (size_t at = rest.find(name); at != std::string::npos; at = rest.find(name)) rest.erase(at, name.size());
  EXPECT_FALSE(has(rest, "http"));
}

TEST(ReportPage, EmptyAndUnmeasuredReportsStillWork) {
  EXPECT_TRUE(has(html(Report()), "No member has a result."));
  Report report;
  report.members.resize(1);
  report.members[0].name = "broken";
  report.members[0].final_bits = {NAN};
  report.members[0].curves = {{{0, 0, NAN}, {1, 1, HUGE_VAL}}};
  const auto page = html(report);
  EXPECT_TRUE(has(page, "diverged"));
  EXPECT_FALSE(has(page, "nan<"));
  EXPECT_FALSE(has(page, ">inf"));
}

TEST(ReportPage, OneLengthGivesBars) {
  auto report = example();
  for (auto& member : report.members) member.speed.resize(1);
  const auto page = html(report);
  EXPECT_TRUE(has(page, "tokens per second at length 512"));
}

Report study_example() {
  Report report = example();
  report.last_bytes = 128, report.windows = 4, report.reference = "window";
  for (auto& member : report.members) {
    member.group = "trained in";
    for (auto& point : member.by_length) {
      point.last = point.bits - 0.05;
      if (point.length > 512) point.change = member.name == "window" ? 0.012 : 0.5, point.change_error = 0.002;
    }
  }
  report.members[1].name = "rope";
  Report::Member applied = report.members[1];
  applied.name = "rerope", applied.applied = "rope", applied.group = "applied <after>", applied.curves.clear();
  applied.setting = "qk=[\"rerope\"]";
  applied.final_bits = {0.5};
  applied.by_length[1].change = -0.03, applied.by_length[1].against = -0.02, applied.by_length[1].against_error = 0.004;
  report.members.push_back(applied);
  return report;
}

TEST(ReportStudy, AChartAndATableForEachGroup) {
  const Report report = study_example();
  EXPECT_EQ(groups_of(report), (std::vector<std::string>{"trained in", "applied <after>"}));
  const std::string page = html(report);
  for (const char* part :
       {"trained in: the last 128 bytes of each text", "applied &lt;after&gt;: all bytes of each text",
        "qk=[&quot;rerope&quot;]", "\u22120.020 \u00b1 0.004", "4 texts of each length"})
    EXPECT_TRUE(has(page, part)) << part;
  EXPECT_TRUE(has(page, "window is best with 2.110")) << "what was not trained is not ranked";
  EXPECT_FALSE(has(page, "<after>"));
  // The parent stands beside what is applied to it.
  EXPECT_TRUE(has(group_chart(report, "applied <after>", true), "<title>rope</title>"));
  EXPECT_FALSE(has(group_chart(report, "applied <after>", true), "<title>window</title>"));
  EXPECT_FALSE(has(html(example()), "holds to"));
}

TEST(ReportStudy, TablesSayUpToWhereAMemberHolds) {
  const std::string tables = markdown(study_example());
  EXPECT_TRUE(has(tables, "| `window` | 2.050 | 1.950 | 1024 |")) << tables;
  EXPECT_TRUE(has(tables, "| `rope` | 2.050 | 1.950 | \u2013 |")) << tables;
  EXPECT_TRUE(has(tables, "| `rerope` | 2.100 | 2.000 | \u22120.020 \u00b1 0.004 |")) << tables;
  EXPECT_TRUE(has(tables, "the weights of `rope` with `--set 'qk=[\"rerope\"]'`")) << tables;
  EXPECT_TRUE(has(tables, "kinfolk compare window rope")) << tables;
}

TEST(ReportJson, AStudyHoldsItsNumbers) {
  const auto parsed = nlohmann::json::parse(json(study_example()));
  EXPECT_EQ(parsed["last_bytes"], 128);
  EXPECT_EQ(parsed["members"][2]["applied"], "rope");
  EXPECT_DOUBLE_EQ(parsed["members"][2]["by_length"][1]["against"].get<double>(), -0.02);
  EXPECT_TRUE(parsed["members"][0]["by_length"][1]["against"].is_null());
  EXPECT_EQ(parsed["verdict"]["order"].size(), 2u);
  EXPECT_FALSE(nlohmann::json::parse(json(example())).contains("last_bytes"));
}

TEST(ReportJson, HoldsTheNumbersAndIsValid) {
  auto report = example();
  report.members[1].by_length[0].bits = NAN;
  const auto parsed = nlohmann::json::parse(json(report));
  EXPECT_EQ(parsed["members"].size(), 2u);
  EXPECT_DOUBLE_EQ(parsed["members"][0]["validation"]["mean"].get<double>(), 2.11);
  EXPECT_TRUE(parsed["members"][1]["by_length"][0]["bits_per_byte"].is_null());
  EXPECT_EQ(parsed["members"][0]["curves"][1].size(), 50u);
  EXPECT_EQ(parsed["verdict"]["order"][0], "window");
  EXPECT_EQ(parsed["baselines"][0]["bits_per_byte"], 2.3);
  EXPECT_TRUE(has(parsed["members"][0]["sample"].get<std::string>(), "\uFFFD"));
  EXPECT_TRUE(nlohmann::json::parse(json(Report()))["members"].empty());
}

}  // namespace
}  // namespace kinfolk
