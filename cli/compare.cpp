// compare: members trained side by side on one text at equal budget, measured beyond the trained length, on one page.
#include <ATen/Parallel.h>
#include <sys/utsname.h>

#include <ctime>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/examine.h"
#include "cli/training.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/ngram.h"
#include "kinfolk/eval/report.h"
#include "kinfolk/eval/verdict.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct CompareFlags {
  TrainingFlags training;
  std::vector<std::string> recipes;
  std::string lengths, prompt = "It was ";
  int64_t seeds = 1, score_tokens = 65536;
};

using Members = std::vector<std::pair<Recipe, Size>>;

std::string machine_words() {
  utsname name{};
  uname(&name);
  std::string model = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  return text(model, ", ", at::get_num_threads(), " threads, ", name.sysname, " ", name.machine);
}

std::string now_words() {
  const std::time_t now = std::time(nullptr);
  char out[64];
  std::strftime(out, sizeof out, "%Y-%m-%d %H:%M", std::localtime(&now));
  return out;
}

double number(const json& value) { return value.is_number() ? value.get<double>() : kNothing; }

Report::Member member_of(const Recipe& recipe, const std::vector<RunSummary>& runs, const std::vector<json>& found,
                         const std::string& prompt) {
  Report::Member m;
  m.name = recipe.name;
  if (const auto* about = recipe.tree.find("about")) m.about = *about->as<std::string>();
  m.parameters = runs[0].parameters;
  m.tokens = runs[0].tokens;
  m.seconds = runs[0].seconds;
  m.flops = runs[0].work;
  m.prompt = prompt;
  for (const auto& run : runs) {
    std::vector<Report::CurvePoint> curve;
    for (const auto& point : run.curve) curve.push_back({point.tokens, point.seconds, point.bits});
    m.curves.push_back(std::move(curve));
    if (!run.warning.empty()) m.warnings.push_back(run.warning);
  }
  const json& first = found[0];
  for (size_t i = 0; i < first["lengths"].size(); ++i) {
    // Over seeds: the mean; the error bar is that of the text, and the seeds' spread stands in the table.
    double sum = 0;
    for (const auto& one : found) sum += number(one["lengths"][i]["bits"]);
    const json& row = first["lengths"][i];
    m.by_length.push_back({row["length"], sum / static_cast<double>(found.size()), number(row["error"]), row["mode"]});
  }
  for (const auto& one : found) m.final_bits.push_back(number(one["lengths"][0]["bits"]));
  m.final_error = number(first["lengths"][0]["error"]);
  for (const auto& row : first["positions"]) {
    m.by_position.push_back(
        {(row["from"].get<int64_t>() + row["to"].get<int64_t>()) / 2, number(row["bits"]), number(row["error"])});
  }
  if (first.contains("speed"))
    for (const auto& row : first["speed"]) {
      m.speed.push_back({row["length"], number(row["train"]), number(row["read"]), number(row["read_peak"])});
      m.state_bytes = number(row["state"]);
    }
  m.state_note = runs[0].state_note;
  m.sample = first.value("sample", "");
  m.policy = first.value("policy", "");
  return m;
}

void print_table(const Report& report) {
  std::printf("%-20s %10s %9s %10s %10s", "member", "parameters", "bytes", "bits/byte", "+-");
  for (const auto& point : report.members.at(0).by_length) std::printf(" %9lld", static_cast<long long>(point.length));
  std::printf("\n");
  for (const auto& m : report.members) {
    const Estimate e = estimate(m.final_bits);
    std::printf("%-20s %10s %9s %10.4f %10.4f", m.name.c_str(), human_count(static_cast<double>(m.parameters)).c_str(),
                human_count(static_cast<double>(m.tokens)).c_str(), e.mean, e.seeds > 1 ? e.spread : m.final_error);
    for (const auto& point : m.by_length) std::printf(" %9.4f", point.bits);
    std::printf("\n");
  }
  for (const auto& b : report.baselines) std::printf("%-20s %10s %9s %10.4f\n", b.name.c_str(), "", "", b.bits);
}

fs::path run_folder(const fs::path& out, const Recipe& recipe, int64_t seed) {
  return out / recipe.name / text("seed-", seed + 1);
}

/// A run from before counts only when it was trained alike: a budget that grew later has another course of the learning
/// rate than one that was as large from the start.
void check_earlier(const fs::path& run, const TrainSettings& settings) {
  const fs::path file = run / "settings.toml";
  std::error_code error;
  if (!fs::exists(file, error)) return;
  static const std::vector<std::string> harmless = {"log_every",  "eval_every", "eval_tokens",
                                                    "save_every", "keep",       "events"};
  const Value before = read_toml(file.string()), now = write_options(settings);
  for (const auto& [key, value] : *now.as<Value::Table>()) {
    const Value* old = before.find(key);
    if (!old || std::find(harmless.begin(), harmless.end(), key) != harmless.end()) continue;
    if (write_toml_value(*old) != write_toml_value(value)) {
      refuse("[compare] ", run.string(), ": expected the settings that its training began with; found ", key, " = ",
             write_toml_value(value), ", ", write_toml_value(*old), " before (another --out starts anew)");
    }
  }
}

/// All members at equal parameters, and everything that could refuse a member before the first is trained.
Members plan(const CompareFlags& flags, const Corpus& corpus, std::string& budget) {
  const TrainingFlags& training = flags.training;
  std::error_code error;
  if (training.out.empty()) refuse("[--out] expected the path of a folder; found an empty path");
  if (fs::exists(training.out, error) && !fs::is_directory(training.out, error)) {
    refuse("[--out] ", training.out, ": expected a folder; found a file");
  }
  Members members;
  budget = training.budget;
  for (const auto& name : flags.recipes) {
    for (const auto& other : members)
      if (other.first.name == load_recipe(name).name)
        refuse("[compare] expected each recipe once; found ", name, " twice");
    members.push_back(resolve(name, training.size, training.sets, budget));
    // Without --budget the first member, at the width of its size, sets the number of parameters for all.
    if (budget.empty()) {
      budget = std::to_string(Model::make(members[0].first, members[0].second, 1, at::TensorOptions().device(at::kMeta))
                                  ->parameter_count());
    }
  }
  for (const auto& [recipe, size] : members) {
    check_plan(recipe, size, corpus, training);
    for (int64_t seed = 0; seed < flags.seeds; ++seed) {
      TrainingFlags one = training;
      one.seed_offset = seed;
      check_earlier(run_folder(training.out, recipe, seed), one.resolved(recipe, size));
    }
  }
  return members;
}

std::vector<int64_t> lengths_of(const CompareFlags& flags, int64_t context, const Corpus& corpus) {
  std::vector<int64_t> lengths = flags.lengths.empty()
                                     ? std::vector<int64_t>{context, 2 * context, 4 * context, 8 * context}
                                     : parse_counts(flags.lengths, "--lengths");
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  const int64_t held_out = corpus.valid.size(), shortest = lengths.front();
  if (shortest >= held_out) {
    fail("[--data] expected more than ", shortest, " held-out bytes, the shortest of --lengths; found ", held_out);
  }
  const size_t asked = lengths.size();
  std::erase_if(lengths, [&](int64_t length) { return length >= held_out; });
  if (lengths.size() < asked) {
    std::cerr << "lengths of " << held_out << " and more are left out: the held-out text ends there\n";
  }
  return lengths;
}

void add_baselines(Report& report, const Corpus& corpus) {
  Progress progress("baselines", 3);
  for (int order = 1; order <= 3; ++order) {
    NgramModel ngram(order);
    for (size_t d = 0; d < corpus.train.documents.size(); ++d) {
      ngram.train(corpus.train.document(d));
      progress.update(order - 1 + static_cast<double>(d) / static_cast<double>(corpus.train.documents.size()));
    }
    report.baselines.push_back({text("order-", order, " bytes"), ngram.bits(corpus.valid.bytes)});
  }
}

void add_picture(Report& report, const std::string& name, const json& found) {
  Report::Pattern picture;
  picture.name = name;
  picture.about = text("which of ", found["sight_length"].get<int64_t>(),
                       " bytes (across) changes which prediction (down), trained");
  picture.rows = picture.columns = found["sight_cells"].get<int64_t>();
  picture.weights = found["sight"].get<std::vector<float>>();
  report.patterns.push_back(std::move(picture));
}

void run_compare(CompareFlags& flags, int& status) {
  const fs::path out = flags.training.out;
  const Corpus corpus = flags.training.corpus();
  if (corpus.images.any()) {
    refuse("[compare] expected a text; found images, which train and eval measure: ", corpus.path);
  }
  std::string budget;
  const Members members = plan(flags, corpus, budget);
  const int64_t context = members[0].second.context;
  Examination wanted{lengths_of(flags, context, corpus), flags.score_tokens, flags.prompt, true};

  Report report;
  report.command = command_line;
  report.created = now_words();
  report.machine = machine_words();
  report.version = KINFOLK_VERSION;
  report.data = text(corpus.path, ": ", human_bytes(static_cast<double>(corpus.train.size())), " to train, ",
                     human_bytes(static_cast<double>(corpus.valid.size())), " held out (", corpus.split, ")");
  report.budget = text(human_count(static_cast<double>(parse_count(budget, "--budget"))), " parameters within 1 %, ",
                       flags.training.budget_words(members[0].first, members[0].second), ", ", flags.seeds,
                       flags.seeds == 1 ? " seed" : " seeds");
  report.trained_length = context;
  std::cerr << report.data << "\n";
  add_baselines(report, corpus);
  std::string failed;
  for (const auto& [recipe, size] : members) {
    try {
      std::vector<RunSummary> runs;
      std::vector<json> found;
      for (int64_t seed = 0; seed < flags.seeds; ++seed) {
        TrainingFlags one = flags.training;
        one.out = run_folder(out, recipe, seed).string();
        one.seed_offset = seed;
        one.title = flags.seeds > 1 ? text(recipe.name, " seed ", seed + 1) : recipe.name;
        std::cerr << one.title << ": " << one.out << "\n";
        runs.push_back(train_member(recipe, size, corpus, one, true));
        if (runs.back().interrupted) {
          std::cerr << "stopped; what was trained is kept: the same command goes on from here\n";
          status = runs.back().exit_status;
          return;
        }
        wanted.full = seed == 0;
        found.push_back(examine(one.out, corpus, wanted, runs.back().steps));
      }
      report.members.push_back(member_of(recipe, runs, found, flags.prompt));
      if (found[0].contains("sight")) add_picture(report, recipe.name, found[0]);
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {  // one member's failure does not take the others with it
      std::cerr << "kinfolk: " << recipe.name << " failed: " << error.what() << "\n";
      report.warnings.push_back(text(recipe.name, " failed and is left out: ", error.what()));
      failed += (failed.empty() ? "" : ", ") + recipe.name;
      if (report.members.empty()) continue;
    }
    // The page is written after every member, so that a long comparison can be looked at while it runs.
    write_file((out / "report.html").string(), html(report));
    write_file((out / "report.json").string(), kinfolk::json(report));
  }
  if (report.members.empty()) fail("[compare] expected a member with a result; found none: ", failed, " failed");
  print_table(report);
  std::cout << "\n"
            << verdict(report).sentence << "\n"
            << (fs::absolute(out) / "report.html").lexically_normal().string() << "\n";
  if (!failed.empty()) fail("[compare] expected a result of every member; found that ", failed, " failed");
}

}  // namespace

void add_compare(CLI::App& app, int& status) {
  auto flags = std::make_shared<CompareFlags>();
  auto* command = app.add_subcommand(
      "compare", "Train members side by side on your own text at equal budget, measure them, and write one report");
  command
      ->add_option("recipe", flags->recipes, "Names of recipes (see kinfolk list), or paths of .toml files of your own")
      ->required()
      ->type_name("");
  flags->training.add_to(*command);
  command
      ->add_option("--lengths", flags->lengths,
                   "Bytes read at once when members are measured, a list such as 256,2048; without it 1, 2, 4 and 8 "
                   "times the trained length")
      ->type_name("LIST");
  add_count(*command, "--score-tokens", flags->score_tokens, 1, "Held-out bytes scored at each length, at most");
  add_count(*command, "--seeds", flags->seeds, 1,
            "Train each member so many times, from other initial weights, and "
            "show the spread");
  command->add_option("--prompt", flags->prompt, "Start of the sample that each member writes")
      ->capture_default_str()
      ->type_name("TEXT");
  command->footer(
      "All members get the same bytes in the same order and, within 1 %, the same number of parameters: that of\n"
      "--budget, or of the first member at its size. --out then holds report.html, report.json, and the run of each\n"
      "member in RECIPE/seed-N. A comparison that was stopped goes on when the same command is given again.\n"
      "Example: kinfolk compare rope window deltanet --data BOOK.txt --out runs/first");
  command->callback([flags, &status] { run_compare(*flags, status); });
}

}  // namespace kinfolk
