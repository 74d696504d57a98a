#include "cli/study_scaling.h"

#include <ATen/Parallel.h>

#include <filesystem>
#include <iostream>

#include "cli/command.h"
#include "cli/study.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/layer_cost.h"
#include "kinfolk/eval/plot.h"
#include "kinfolk/eval/report_scaling.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

struct Stopped {};

bool measured_at(const Study::Entry& entry, int64_t length) { return entry.until == 0 || length <= entry.until; }

std::pair<Recipe, Size> planned(const Study& study, const Study::Entry& entry, int64_t length) {
  return resolve(member_recipe(study, entry), study.scaling->size, length, {}, "");
}

void write_all(const fs::path& out, const ScalingReport& report) {
  write_file((out / "report.html").string(), html(report));
  write_file((out / "table.md").string(), markdown(report));
  write_file((out / "report.json").string(), json(report));
  write_file((out / "time.svg").string(), standing_alone(time_chart(report)));
  write_file((out / "memory.svg").string(), standing_alone(memory_chart(report)));
}

/// Adds a point to the curve of each member that is measured at this length.
void measure(const Study& study, int64_t length, ScalingReport& report, const std::function<void(size_t)>& note) {
  std::vector<LayerCost> layers;
  std::vector<size_t> which;
  int64_t width = 0;
  for (size_t i = 0; i < study.members.size(); ++i) {
    if (!measured_at(study.members[i], length)) continue;
    const auto [recipe, size] = planned(study, study.members[i], length);
    layers.emplace_back(recipe, size);
    which.push_back(i);
    width = size.width;
  }
  Turns turns;
  turns.seconds = study.scaling->seconds, turns.least = study.scaling->rounds, turns.once = HUGE_VAL,
  turns.settle = true;
  const auto points = measure_layers(layers, length, width, turns, [&](size_t layer) { note(which[layer]); });
  for (size_t i = 0; i < which.size(); ++i) report.curves[which[i]].points.push_back(points[i]);
}

ScalingReport frame(const Study& study) {
  ScalingReport out;
  const Size size = load_size(study.scaling->size);
  out.title = study.about.empty() ? study.name : study.about;
  out.layer = text("width ", size.width, ", ", size.heads, size.heads == 1 ? " head" : " heads");
  out.machine = machine_words(), out.date = now_words(), out.command = command_line;
  out.reference = study.scaling->reference, out.without = study.scaling->without;
  out.fit_from = study.scaling->fit_from;
  for (const auto& entry : study.members) out.curves.push_back({entry.name});
  return out;
}

}  // namespace

int compare_scaling(const Study& study, const std::string& out) {
  if (out.empty()) refuse("[--out] expected the path of a folder; found an empty path");
  const auto& lengths = study.scaling->lengths;
  for (const auto& entry : study.members) planned(study, entry, lengths.back());  // all are refused before one is run
  std::error_code error;
  fs::create_directories(out, error);
  if (!fs::is_directory(out)) refuse("[--out] ", out, ": expected a folder that can be made; found ", error.message());
  at::set_num_threads(1);
  ScalingReport report = frame(study);
  watch_interrupts();
  Progress progress("scaling", static_cast<double>(lengths.size()));
  int status = 0;
  for (size_t i = 0; i < lengths.size() && status == 0; ++i) {
    try {
      measure(study, lengths[i], report, [&](size_t member) {
        if (asked_to_stop()) throw Stopped();
        progress.update(static_cast<double>(i), text(lengths[i], " tokens: ", study.members[member].name));
      });
    } catch (const Stopped&) {
      progress.say(text("stopped at ", lengths[i], " tokens; what was measured at shorter lengths is kept"));
      status = 130;
      if (i == 0) return status;
    }
    write_all(out, report);
  }
  progress.finish();
  std::cout << markdown(report) << "\n" << (fs::absolute(out) / "report.html").lexically_normal().string() << "\n";
  return status;
}

}  // namespace kinfolk
