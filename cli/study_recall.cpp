#include "cli/study_recall.h"

#include <filesystem>
#include <iostream>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/recall.h"
#include "cli/study.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/plot.h"
#include "kinfolk/eval/report_tasks.h"
#include "kinfolk/train/data/recall.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

struct Lesson {
  const Study::Task* task;
  Corpus corpus;
  TrainingFlags flags;
  std::vector<std::pair<Recipe, Size>> members;
};

TrainingFlags flags_of(const Study::Task& task, TrainingFlags flags) {
  if (!task.from.empty()) flags.from = (fs::path(flags.out) / task.from).string();
  flags.out = (fs::path(flags.out) / task.name).string();
  if (!task.state.empty()) flags.state_budget = task.state;
  if (task.tokens > 0) flags.settings["tokens"] = std::to_string(task.tokens);
  if (task.lanes > 0) flags.settings["lanes"] = std::to_string(task.lanes);
  return flags;
}

/// Every member of a task at equal parameters: those of --budget, or of the first.
Lesson planned(const Study& study, const Study::Task& task, const TrainingFlags& flags) {
  Lesson out{&task, recall_corpus(task.data), flags_of(task, flags), {}};
  for (const auto& entry : study.members) {
    auto [recipe, size] =
        resolve(member_recipe(study, entry), out.flags.size, study.settings.context, out.flags.sets, "");
    size = size_for(size, out.corpus.recall);
    if (!out.flags.budget.empty()) size = solve_budget(recipe, size, parse_count(out.flags.budget, "--budget", 1));
    if (!entry.unlimited) meet_state_budget(recipe, size, out.flags, out.flags.budget);
    if (out.flags.budget.empty()) {
      out.flags.budget =
          std::to_string(Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta))->parameter_count());
    }
    check_plan(recipe, size, out.corpus, out.flags);
    out.members.emplace_back(std::move(recipe), size);
  }
  return out;
}

/// The point of a task's chart, made when it is the chart's first.
void add_point(TaskReport& report, const Study::Task& task, const RecallRow& row) {
  auto chart =
      std::find_if(report.charts.begin(), report.charts.end(), [&](const auto& one) { return one.name == task.chart; });
  if (chart == report.charts.end()) chart = report.charts.insert(chart, {task.chart, task.axis, {}});
  chart->points.push_back({row.name, task.name, task.at, row.accuracy, row.error, row.state_bytes});
}

void write_all(const fs::path& out, const TaskReport& report, const nlohmann::json& rows) {
  write_file((out / "report.html").string(), html(report));
  write_file((out / "table.md").string(), markdown(report));
  write_file((out / "report.json").string(),
             nlohmann::json({{"command", report.command}, {"rows", rows}}).dump(1) + "\n");
  for (const auto& chart : report.charts) {
    std::string name = chart.name;
    for (char& c : name)
      c = std::isalnum(static_cast<unsigned char>(c)) ? std::tolower(static_cast<unsigned char>(c)) : '_';
    write_file((out / (name + ".svg")).string(), standing_alone(task_chart(report, chart)));
  }
}

}  // namespace

int compare_tasks(const Study& study, TrainingFlags flags, int64_t seeds) {
  if (flags.out.empty()) refuse("[--out] expected the path of a folder; found an empty path");
  if (!flags.state_budget.empty()) refuse("[--state-budget] expected none: the tasks of a study set it; found one");
  std::vector<Lesson> lessons;  // all are refused before one is trained
  for (const auto& task : study.tasks) {
    if (task.of.empty())
      lessons.push_back(planned(study, task, flags));
    else
      read_recall(task.data);
  }
  TaskReport report;
  report.title = study.about.empty() ? study.name : study.about;
  report.budget = lessons[0].flags.budget_words(lessons[0].members[0].first, lessons[0].members[0].second);
  report.machine = machine_words(), report.date = now_words(), report.command = command_line;
  for (const auto& entry : study.members) report.members.push_back(entry.name);
  nlohmann::json rows = nlohmann::json::array();
  const auto add = [&](const Study::Task& task, const RecallRow& row) {
    add_point(report, task, row);
    rows.push_back(to_json(row));
    rows.back()["task"] = task.name, rows.back()["data"] = task.data;
  };
  const fs::path out = flags.out;
  for (const auto& lesson : lessons) {
    for (const auto& [recipe, size] : lesson.members) {
      std::cerr << lesson.task->name << ", ";
      int status = 0;
      const auto found = train_recall(recipe, size, lesson.corpus, lesson.flags, seeds, status);
      if (!found) return status;
      add(*lesson.task, over_seeds(*found));
      for (const auto& task : study.tasks) {
        if (task.of != lesson.task->name) continue;
        std::vector<RecallRow> asked;
        for (int64_t seed = 0; seed < seeds; ++seed) {
          asked.push_back(ask_recall(recall_run(lesson.flags.out, recipe.name, seed), read_recall(task.data)));
          asked.back().name = recipe.name;
        }
        add(task, over_seeds(asked));
      }
      write_all(out, report, rows);
    }
  }
  std::cout << markdown(report) << "\n" << (fs::absolute(out) / "report.html").lexically_normal().string() << "\n";
  return 0;
}

}  // namespace kinfolk
