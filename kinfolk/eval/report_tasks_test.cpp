#include "kinfolk/eval/report_tasks.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

TaskReport small() {
  TaskReport report;
  report.title = "Pairs & states";
  report.members = {"attention", "delta<net>"};
  report.charts = {{"Recall",
                    "pairs",
                    {{"attention", "p4", 4, 1, 0, 1024},
                     {"delta<net>", "p4", 4, 0.5, 0.01, 2048},
                     {"delta<net>", "p32", 32, 0.125, 0.01, 4096}}},
                   {"Nothing yet", "length", {}}};
  report.command = "kinfolk compare study --out <here>";
  return report;
}

TEST(TaskReport, TablesHoldEveryPoint) {
  const std::string out = markdown(small());
  EXPECT_NE(out.find("| right answers, %, by pairs | 4 | 32 | state of a lane |"), std::string::npos) << out;
  EXPECT_NE(out.find("| attention | 100.0 | – | 1 KiB |"), std::string::npos) << out;
  EXPECT_NE(out.find("| delta<net> | 50.0 | 12.5 | 2 KiB to 4 KiB |"), std::string::npos) << out;
  EXPECT_EQ(out.find("Nothing yet"), std::string::npos);
}

TEST(TaskReport, PageIsSafeAndWhole) {
  const std::string out = html(small());
  EXPECT_EQ(out.find("<net>"), std::string::npos);
  EXPECT_EQ(out.find("<here>"), std::string::npos);
  EXPECT_NE(out.find("Pairs &amp; states"), std::string::npos);
  EXPECT_NE(out.find("<svg"), std::string::npos);
  EXPECT_NE(out.find("</html>"), std::string::npos);
}

TEST(TaskReport, ChartDrawsACurveAMember) {
  const TaskReport report = small();
  const std::string picture = task_chart(report, report.charts[0]);
  EXPECT_NE(picture.find("attention"), std::string::npos);
  EXPECT_NE(picture.find("delta&lt;net&gt;"), std::string::npos);
  EXPECT_NE(picture.find("right answers, %"), std::string::npos);
}

}  // namespace
}  // namespace kinfolk
