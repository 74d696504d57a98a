// The report of a study of tasks: charts and tables of right answers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kinfolk {

struct TaskReport {
  struct Point {
    std::string member, task;
    double at = 0, accuracy = 0, error = 0;  ///< right answers, 0 to 1
    int64_t state_bytes = 0;                 ///< of a lane; 0: unknown
  };
  struct Chart {
    std::string name, axis;
    std::vector<Point> points;
  };
  std::string title, budget, machine, date, command;
  std::vector<std::string> members;  ///< in the order of tables and colours
  std::vector<Chart> charts;
};

/// The share of right answers over the axis, a curve a member; the axis is logarithmic where its values span more than
/// a factor of four.
std::string task_chart(const TaskReport& report, const TaskReport::Chart& chart);
std::string html(const TaskReport& report);
/// A table for each chart: members down, the axis across, states below where they were turned.
std::string markdown(const TaskReport& report);

}  // namespace kinfolk
