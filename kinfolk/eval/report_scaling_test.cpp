#include "kinfolk/eval/report_scaling.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kinfolk {
namespace {

ScalingReport small() {
  ScalingReport report;
  report.title = "Cost & length", report.layer = "width 16", report.command = "kinfolk compare mine.toml --out <here>";
  report.reference = "dense", report.without = "nothing", report.fit_from = 1024;
  CostCurve dense{"dense"}, line{"li<near>"}, nothing{"nothing"};
  for (int64_t length = 1024; length <= 8192; length *= 2) {
    const double x = static_cast<double>(length);
    if (length <= 4096) dense.points.push_back({length, 1e-6 * x + 1e-9 * x * x, 2048 * x, 3});
    line.points.push_back({length, 4e-6 * x, 1024 * x, 3});
    nothing.points.push_back({length, 1e-6 * x, 512 * x, 3});
  }
  report.curves = {dense, line, nothing};
  return report;
}

TEST(ScalingReport, TablesHoldExponentsCrossingsAndExtrapolations) {
  const std::string out = markdown(small());
  EXPECT_NE(out.find("| member | time | of the last two lengths | time beyond nothing | memory | cheaper than dense "
                     "from |\n| --- | ---: |"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("| li<near> | 1.00 ± 0.00 | 1.00 | 1.00 ± 0.00 | 1.00 ± 0.00 | about 3.0k |"), std::string::npos)
      << out;
  EXPECT_NE(out.find("| dense | 1.67 ± 0.04 | 1.74 | 2.00 ± 0.00 | 1.00 ± 0.00 | – |"), std::string::npos) << out;
  EXPECT_NE(out.find("| nothing | 1.00 ± 0.00 | 1.00 | – | 1.00 ± 0.00 | below 1024 |"), std::string::npos) << out;
  EXPECT_NE(out.find("| dense | 2 | 3 | 5.1 | ≈ 8.1 |"), std::string::npos) << out;
  EXPECT_NE(out.find("| dense | 2 | 2 | 2 | ≈ 2 |"), std::string::npos) << out;
}

TEST(ScalingReport, PageIsSafeAndWhole) {
  const std::string out = html(small());
  EXPECT_EQ(out.find("<near>"), std::string::npos);
  EXPECT_EQ(out.find("<here>"), std::string::npos);
  for (const char* part : {"Cost &amp; length", "<svg", "li&lt;near&gt;", "cheaper than dense from", "</html>"})
    EXPECT_NE(out.find(part), std::string::npos) << part;
}

TEST(ScalingReport, ChartsSayTheExponentAndDotWhatIsExtrapolated) {
  const std::string out = time_chart(small());
  EXPECT_NE(out.find(">dense  1.67 ± 0.04<"), std::string::npos) << out;
  EXPECT_NE(out.find("<title>dense, extrapolated</title>"), std::string::npos);
  EXPECT_EQ(out.find(">dense, extrapolated</text>"), std::string::npos) << "no place in the legend";
  EXPECT_NE(memory_chart(small()).find(">dense  1.00 ± 0.00<"), std::string::npos);
}

/// After the first length there is no exponent yet.
TEST(ScalingReport, OneLengthIsEnoughForAPage) {
  ScalingReport report = small();
  for (auto& curve : report.curves) curve.points.resize(1);
  EXPECT_NE(markdown(report).find("| dense | – | – | – | – | – |"), std::string::npos) << markdown(report);
  const auto read = nlohmann::json::parse(json(report));
  EXPECT_EQ(read["members"][0]["points"].size(), 1u);
  EXPECT_TRUE(read["members"][0]["time"]["exponent"].is_null());
  EXPECT_NE(html(report).find("</html>"), std::string::npos);
  for (auto& curve : report.curves) curve.points.clear();
  EXPECT_NE(html(report).find("no data"), std::string::npos);
}

TEST(ScalingReport, JsonHoldsWhatWasMeasured) {
  const auto read = nlohmann::json::parse(json(small()));
  EXPECT_EQ(read["members"][0]["points"].size(), 3u);
  EXPECT_EQ(read["members"][1]["points"][3]["length"], 8192);
  EXPECT_NEAR(read["members"][1]["cheaper_from"]["length"].get<double>(), 3000, 60);
  EXPECT_FALSE(read["members"][0].contains("cheaper_from"));
  EXPECT_NEAR(read["members"][0]["time_beyond"]["exponent"].get<double>(), 2, 1e-6);
}

}  // namespace
}  // namespace kinfolk
