// Studies of tasks: every member learns every task, and charts show the share of right answers.
#pragma once
#include "cli/training.h"
#include "kinfolk/eval/study.h"

namespace kinfolk {

/// Trains the members of a study on its tasks, each in OUT/TASK/MEMBER/seed-N, and writes OUT/report.html, table.md,
/// report.json and a picture for each chart, anew after each member. Returns the exit status.
int compare_tasks(const Study& study, TrainingFlags flags, int64_t seeds);

}  // namespace kinfolk
