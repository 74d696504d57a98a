#include "cli/recall.h"

#include <cmath>
#include <filesystem>
#include <iostream>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/data/recall.h"
#include "kinfolk/train/progress.h"
#include "kinfolk/train/score_recall.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kTokens = 65536;
constexpr int64_t kAnswers = 256;  ///< at least, however long an example is

std::string number(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  char out[32];
  std::snprintf(out, sizeof out, "%.*f", digits, value);
  return out;
}

std::string markdown(const std::vector<RecallRow>& rows) {
  std::string out =
      "| member | right | +- | bits an answer | parameters | state of a lane | training |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const auto& row : rows) {
    out += text("| ", row.name, " | ", number(row.accuracy, 4), " | ", number(row.error, 4), " | ", number(row.bits, 4),
                " | ", human_count(static_cast<double>(row.parameters)), " | ",
                row.state_bytes ? human_bytes(static_cast<double>(row.state_bytes)) : "-", " | ",
                human_count(static_cast<double>(row.tokens)), " tokens, ", number(row.seconds, 0), " s |\n");
  }
  return out;
}

RecallScore score_run(const std::string& checkpoint, const RecallTask& task, int64_t tokens,
                      const std::vector<std::string>& sets) {
  auto loaded = load_run(checkpoint, true, sets);
  if (!holds_recall(loaded.record.data)) {
    refuse("[data] expected a run that was trained on a task; found one of ", loaded.record.data);
  }
  Progress progress("scoring", 1.0);
  const RecallScore score = score_recall(*loaded.model, task, std::max<int64_t>(tokens / task.length(), 1),
                                         [&](double share) { progress.update(share); });
  progress.finish();
  return score;
}

}  // namespace

json to_json(const RecallRow& row) {
  return {{"name", row.name},     {"accuracy", row.accuracy},     {"error", row.error},
          {"bits", row.bits},     {"parameters", row.parameters}, {"state_bytes", row.state_bytes},
          {"tokens", row.tokens}, {"seconds", row.seconds},       {"answers", row.answers}};
}

RecallRow over_seeds(const std::vector<RecallRow>& seeds) {
  RecallRow out = seeds.front();
  const double n = static_cast<double>(seeds.size());
  if (seeds.size() == 1) return out;
  out.accuracy = out.bits = out.seconds = out.error = 0;
  for (const auto& row : seeds) {
    out.accuracy += row.accuracy / n, out.bits += row.bits / n, out.seconds += row.seconds / n;
  }
  for (const auto& row : seeds) out.error += std::pow(row.accuracy - out.accuracy, 2) / (n - 1);
  out.error = std::sqrt(out.error / n);
  return out;
}

std::string recall_run(const std::string& out, const std::string& member, int64_t seed) {
  return (fs::path(out) / member / text("seed-", seed + 1)).string();
}

RecallRow ask_recall(const std::string& run, const RecallTask& task) {
  const int64_t examples = (kAnswers + task.answers() - 1) / task.answers();
  const int64_t tokens = std::max(kTokens, examples * task.length());
  const RecallScore s = score_run(checkpoint_file(run, "last"), task, tokens, {});
  RecallRow row;
  row.accuracy = s.accuracy, row.error = s.error, row.bits = s.bits;
  row.state_bytes = s.state_bytes, row.answers = s.answers;
  return row;
}

std::optional<std::vector<RecallRow>> train_recall(const Recipe& recipe, const Size& size, const Corpus& corpus,
                                                   const TrainingFlags& flags, int64_t seeds, int& status) {
  std::vector<RecallRow> found;
  for (int64_t seed = 0; seed < seeds; seed++) {
    TrainingFlags one = flags;
    one.out = recall_run(flags.out, recipe.name, seed);
    one.seed_offset = seed;
    if (!flags.from.empty()) one.from = recall_run(flags.from, recipe.name, seed);
    one.title = seeds > 1 ? text(recipe.name, " seed ", seed + 1) : recipe.name;
    std::cerr << one.title << ": " << one.out << "\n";
    const RunSummary run = train_member(recipe, size, corpus, one, true);
    if (run.interrupted) {
      std::cerr << "stopped; what was trained is kept: the same command goes on from here\n";
      status = run.exit_status;
      return {};
    }
    found.push_back(ask_recall(one.out, corpus.recall));
    found.back().name = recipe.name;
    found.back().parameters = run.parameters, found.back().tokens = run.tokens, found.back().seconds = run.seconds;
  }
  return found;
}

void eval_recall(const std::string& checkpoint, const std::string& task, int64_t tokens,
                 const std::vector<std::string>& sets, bool as_json) {
  const RecallScore s = score_run(checkpoint, read_recall(task), tokens > 0 ? tokens : kTokens, sets);
  if (as_json) {
    const json out = {{"accuracy", s.accuracy}, {"error", s.error},     {"bits_per_answer", s.bits},
                      {"examples", s.examples}, {"answers", s.answers}, {"state_bytes", s.state_bytes}};
    std::cout << out.dump(1) << "\n";
    return;
  }
  std::printf("%9s %9s %12s %9s %9s %12s\n", "right", "+-", "bits/answer", "examples", "answers", "state");
  std::printf("%9.4f %9s %12.4f %9lld %9lld %12s\n", s.accuracy, number(s.error, 4).c_str(), s.bits,
              static_cast<long long>(s.examples), static_cast<long long>(s.answers),
              s.state_bytes ? human_bytes(static_cast<double>(s.state_bytes)).c_str() : "-");
}

int compare_recall(const std::vector<std::string>& names, const Corpus& corpus, TrainingFlags flags, int64_t seeds) {
  std::vector<std::pair<Recipe, Size>> members;
  for (const auto& name : names) {  // all are refused before one is trained
    members.push_back(resolve_for(corpus, name, flags));
    const auto& [recipe, size] = members.back();
    for (size_t i = 0; i + 1 < members.size(); i++)
      if (members[i].first.name == recipe.name) refuse("[compare] expected each recipe once; found ", name, " twice");
    if (flags.budget.empty()) {
      flags.budget =
          std::to_string(Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta))->parameter_count());
    }
    check_plan(recipe, size, corpus, flags);
  }
  const fs::path out = flags.out;
  std::vector<RecallRow> rows;
  json runs = json::array();
  for (const auto& [recipe, size] : members) {
    int status = 0;
    const auto found = train_recall(recipe, size, corpus, flags, seeds, status);
    if (!found) return status;
    for (size_t seed = 0; seed < found->size(); seed++) {
      runs.push_back(to_json((*found)[seed]));
      runs.back()["seed"] = seed + 1;
    }
    rows.push_back(over_seeds(*found));
    json report = {{"command", command_line}, {"task", corpus.recall.words()}, {"members", json::array()}};
    for (const auto& row : rows) report["members"].push_back(to_json(row));
    report["runs"] = runs;
    write_file((out / "report.json").string(), report.dump(1) + "\n");
    write_file((out / "table.md").string(), markdown(rows));
  }
  std::cout << corpus.recall.words() << "\n\n"
            << markdown(rows) << "\n"
            << (fs::absolute(out) / "table.md").lexically_normal().string() << "\n";
  return 0;
}

}  // namespace kinfolk
