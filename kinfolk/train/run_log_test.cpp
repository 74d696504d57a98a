#include "kinfolk/train/run_log.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/train/training_testing.h"

namespace kinfolk {
namespace {

using testing_runs::Folder;

LogRow row(int64_t step) {
  LogRow out;
  out.step = step;
  out.loss = 1.0 / 3;
  out.norm = std::nan("");
  out.losses["ponder"] = 0.25;
  return out;
}

TEST(RunLog, RowsComeBack) {
  const Folder folder("log");
  std::filesystem::create_directories(folder.path());
  const std::string path = folder / "log.jsonl";
  {
    RunLog log(path, -1);
    for (int64_t step = 1; step <= 3; ++step) log.add(row(step));
    EXPECT_EQ(read_log(path).size(), 3u);  // nothing waits for the end
  }
  EXPECT_EQ(to_json(read_log(path)[1]), to_json(row(2)));
  std::ofstream(path, std::ios::app) << "{\"event\": \"tra";  // killed while it wrote
  EXPECT_EQ(read_log(path).size(), 3u);
  RunLog(path, 2).add(row(9));
  const auto rows = read_log(path);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].step, 9);
  std::ofstream(path, std::ios::app) << "{\"event\": 3}\n";
  EXPECT_THROW(read_log(path), Error);
  EXPECT_THROW(read_log(folder / "none"), Error);
}

}  // namespace
}  // namespace kinfolk
