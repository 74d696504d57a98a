#include "kinfolk/eval/bench_run.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kinfolk {
namespace {

std::vector<BenchRow> rows_of(BenchOptions options, const std::function<void(BenchRun&)>& body) {
  std::vector<BenchRow> rows;
  options.row = [&](const BenchRow& row) { rows.push_back(row); };
  BenchRun run(options);
  run.wants("group");
  body(run);
  return rows;
}

std::function<void()> spend(double seconds) {
  return [seconds] {
    for (const double until = cpu_seconds() + seconds; cpu_seconds() < until;) continue;
  };
}

TEST(BenchRun, GoalsAreBoundsOfTheRatio) {
  BenchRow row;
  row.ratio = 1.2;
  EXPECT_TRUE(row.met());
  row.goal = Goal{1.2};
  EXPECT_TRUE(row.met());
  row.goal = Goal{1.3};
  EXPECT_FALSE(row.met());
  row.goal = Goal{1.3, true};
  EXPECT_TRUE(row.met());
  row.goal = Goal{1.1, true};
  EXPECT_FALSE(row.met());
}

TEST(BenchRun, LinesHaveUnitsGoalsAndRates) {
  BenchRow row{"dense", "causal, forward", 4096, "s", 0.1, 0.13, "SDPA", 1.3, Goal{1.15}, "GFLOP/s", 120, 160};
  const auto has = [&](const char* part) { return bench_line(row).find(part) != std::string::npos; };
  for (const char* part : {"causal, forward", " 4096 ", "100.00 ms", "SDPA", "130.00 ms", " 1.30 ", ">= 1.15",
                           "120 = 0.75 of 160 GFLOP/s"}) {
    EXPECT_TRUE(has(part)) << part << " in " << bench_line(row);
  }
  EXPECT_FALSE(has("!"));
  row.goal = Goal{1.5}, row.rate = 0;
  EXPECT_TRUE(has(">= 1.5 !")) << bench_line(row);
  EXPECT_TRUE(has("  160 GFLOP/s") || has(" 160 GFLOP/s")) << bench_line(row);
  EXPECT_FALSE(has(" of ")) << bench_line(row);
  row.unit = "B", row.ours = 3 << 20, row.theirs = 1.5 * (1 << 20);
  EXPECT_TRUE(has("3.0 MiB")) << bench_line(row);
  row.unit = "", row.ours = 1.25e-7;
  EXPECT_TRUE(has("1.2e-07") || has("1.3e-07")) << bench_line(row);

  const auto json = nlohmann::json::parse(bench_json({row}));
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["what"], "causal, forward");
  EXPECT_EQ(json[0]["goal"], ">= 1.5");
  EXPECT_EQ(json[0]["met"], false);
  EXPECT_EQ(json[0]["limit"], 160);
}

TEST(BenchRun, LengthsOfTheUserReplaceTheOthers) {
  BenchOptions options;
  EXPECT_EQ(BenchRun(options).lengths({1, 2}, {3}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(BenchRun(options).stretch(8, 32), std::make_pair(int64_t{8}, int64_t{32}));
  options.full = true;
  EXPECT_EQ(BenchRun(options).lengths({1, 2}, {3}), (std::vector<int64_t>{1, 2, 3}));
  options.lengths = {7, 5, 6};
  EXPECT_EQ(BenchRun(options).lengths({1, 2}, {3}), (std::vector<int64_t>{7, 5, 6}));
  EXPECT_EQ(BenchRun(options).stretch(8, 32), std::make_pair(int64_t{5}, int64_t{7}));
}

TEST(BenchRun, GroupsAreThoseAskedFor) {
  BenchOptions options;
  EXPECT_TRUE(BenchRun(options).wants("a"));
  options.groups = {"b"};
  EXPECT_FALSE(BenchRun(options).wants("a"));
  EXPECT_TRUE(BenchRun(options).wants("b"));
}

TEST(BenchRun, ContestComparesBothWays) {
  const at::Tensor x = at::randn({4}).requires_grad_(true);
  int gradients = 0;
  const auto side = [&](double seconds) {
    return Side{[=, &gradients] {
                  spend(seconds)();
                  gradients += at::GradMode::is_enabled();
                  return x * 2;
                },
                {x}};
  };
  BenchOptions options;
  const auto rows = rows_of(options, [&](BenchRun& run) {
    run.contest({.what = "x", .length = 4, .other = "y", .forward_flops = 1e6, .forward_goal = Goal{1.5}, .scale = 10},
                side(1e-3), side(2e-3));
  });
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_GT(gradients, 0);
  EXPECT_EQ(rows[0].what, "x, forward");
  EXPECT_EQ(rows[1].what, "x, with backward");
  EXPECT_EQ(rows[0].group, "group");
  EXPECT_NEAR(rows[0].ratio, 20, 4);
  EXPECT_NEAR(rows[0].theirs, 20e-3, 4e-3);
  EXPECT_NEAR(rows[0].rate, 1, 0.3);  // 1e6 in 1 ms are 1 GFLOP/s
  EXPECT_GT(rows[0].limit, 0);
  EXPECT_GE(rows[0].rounds, 3);
}

TEST(BenchRun, GrowthIsTimeATokenAtTheLongerOverTheShorter) {
  const auto body = [](BenchRun& run) {
    run.growth("x", {100, 400}, 1.1, [](bool longer) { spend(longer ? 8e-3 : 1e-3)(); });
    run.growth("same", {100, 100}, 1.1, [](bool) {});
  };
  const auto rows = rows_of({}, body);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_NEAR(rows[0].ratio, 2, 0.4);
  EXPECT_NEAR(rows[0].ours, 2e-5, 0.4e-5);
  EXPECT_FALSE(rows[0].met());
}

TEST(BenchRun, PeakIsWhatARunNeedsAtMost) {
  BenchRun run({});
  const int64_t bytes = 64 << 20;
  const auto fill = [&] { at::ones({bytes / 4}, at::kFloat); };
  const int64_t rise = run.peak(fill);
  EXPECT_GT(rise, bytes * 9 / 10);
  EXPECT_LT(rise, bytes * 11 / 10);
  EXPECT_LT(run.peak([] {}), 1 << 20);
}

}  // namespace
}  // namespace kinfolk
