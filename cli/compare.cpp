// compare: members trained side by side on one text at equal budget, measured beyond the trained length, on one page.
#include <cinttypes>
#include <iostream>
#include <map>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/examine.h"
#include "cli/recall.h"
#include "cli/study.h"
#include "cli/study_recall.h"
#include "cli/study_scaling.h"
#include "cli/training.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/ngram.h"
#include "kinfolk/eval/perplexity.h"
#include "kinfolk/eval/plot.h"
#include "kinfolk/eval/report.h"
#include "kinfolk/eval/report_study.h"
#include "kinfolk/eval/verdict.h"
#include "kinfolk/train/data/recall.h"
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
  std::optional<Study> study;  ///< instead of recipes
};

struct Planned {
  Recipe recipe;
  Size size;
  Study::Entry entry;  ///< of the study
};
using Members = std::vector<Planned>;
using Found = std::vector<json>;  ///< of a member, one a seed

double number(const json& value) { return value.is_number() ? value.get<double>() : kNothing; }

Report::Member member_of(const Recipe& recipe, const std::vector<RunSummary>& runs, const Found& found,
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
  const auto at_home = [](const json& one) { return one.value("trained", one["lengths"][0]); };
  for (const auto& one : found) m.final_bits.push_back(number(at_home(one)["bits"]));
  m.final_error = number(at_home(first)["error"]);
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
    for (const auto& point : m.by_length) std::printf(" %9.4f", report.last_bytes > 0 ? point.last : point.bits);
    std::printf("\n");
  }
  if (report.last_bytes > 0) std::printf("by length: the last %" PRId64 " bytes of each text\n", report.last_bytes);
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

/// The recipes of the command, or those of the study, not yet of equal size.
Members wanted_members(const CompareFlags& flags) {
  Members out;
  if (flags.study) {
    for (const auto& entry : flags.study->members) out.push_back({member_recipe(*flags.study, entry), {}, entry});
    return out;
  }
  for (const auto& name : flags.recipes) {
    out.push_back({load_recipe(name), {}, {}});
    for (size_t i = 0; i + 1 < out.size(); ++i)
      if (out[i].recipe.name == out.back().recipe.name) {
        refuse("[compare] expected each recipe once; found ", name, " twice");
      }
  }
  return out;
}

/// All members at equal parameters, and everything that could refuse a member before the first is trained.
Members plan(const CompareFlags& flags, const Corpus& corpus, std::string& budget) {
  const TrainingFlags& training = flags.training;
  std::error_code error;
  if (training.out.empty()) refuse("[--out] expected the path of a folder; found an empty path");
  if (fs::exists(training.out, error) && !fs::is_directory(training.out, error)) {
    refuse("[--out] ", training.out, ": expected a folder; found a file");
  }
  Members members = wanted_members(flags);
  const int64_t context = flags.study ? flags.study->settings.context : 0;
  budget = training.budget;
  for (auto& member : members) {
    std::tie(member.recipe, member.size) = resolve(member.recipe, training.size, context, training.sets, budget);
    check_says_next(member.recipe);
    meet_state_budget(member.recipe, member.size, training, budget);
    // Without --budget the first member, at the width of its size, sets the number of parameters for all.
    if (budget.empty()) {
      budget = std::to_string(
          Model::make(member.recipe, member.size, 1, at::TensorOptions().device(at::kMeta))->parameter_count());
    }
  }
  for (const auto& [recipe, size, entry] : members) {
    check_plan(recipe, size, corpus, training);
    if (flags.study) check_applied(*flags.study, recipe, size);
    for (int64_t seed = 0; seed < flags.seeds; ++seed) {
      TrainingFlags one = training;
      one.seed_offset = seed;
      check_earlier(run_folder(training.out, recipe, seed), one.resolved(recipe, size));
    }
  }
  return members;
}

std::vector<int64_t> lengths_of(const CompareFlags& flags, int64_t context, const Corpus& corpus) {
  std::vector<int64_t> lengths = {context, 2 * context, 4 * context, 8 * context};
  if (flags.study && !flags.study->settings.lengths.empty()) lengths = flags.study->settings.lengths;
  if (!flags.lengths.empty()) lengths = parse_counts(flags.lengths, "--lengths");
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

/// What was found of all members, in the order of the report: the trained ones, then what was applied to them.
struct Results {
  std::vector<Report::Member> trained, applied;
  std::map<std::string, Found> found;
};

void write_report(const fs::path& out, const Report& report) {
  write_file((out / "report.html").string(), html(report));
  write_file((out / "report.json").string(), kinfolk::json(report));
  if (report.last_bytes == 0) return;
  write_file((out / "table.md").string(), markdown(report));
  for (const auto& group : groups_of(report)) {
    std::string name = group;
    for (char& c : name)
      if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    write_file((out / (name + ".svg")).string(), standing_alone(group_chart(report, group, true)));
  }
}

/// Before anything is trained: so many texts must fit side by side into what is held out.
void check_windows(const Corpus& corpus, const Examination& wanted) {
  const int64_t longest = wanted.lengths.back(), fit = corpus.valid.size() / (longest + 1);
  if (wanted.windows > fit) {
    fail("[study.windows] expected at most ", fit, ", as many of ", longest,
         " bytes as the held-out text holds side by side; found ", wanted.windows);
  }
}

Report with_members(Report report, const Results& results) {
  report.members = results.trained;
  report.members.insert(report.members.end(), results.applied.begin(), results.applied.end());
  if (report.last_bytes == 0) return report;
  const auto reference = results.found.find(report.reference);
  for (auto& member : report.members) {
    const bool itself = member.name == report.reference || reference == results.found.end();
    add_paired(member, results.found.at(member.name), report.trained_length, itself ? Found{} : reference->second);
  }
  return report;
}

/// What is applied to a member that was trained.
void examine_applied(const CompareFlags& flags, const Corpus& corpus, const Planned& member,
                     const std::vector<RunSummary>& runs, const Examination& wanted, Results& results) {
  for (const auto& entry : flags.study->after) {
    if (entry.member != member.recipe.name) continue;
    Found found;
    for (size_t seed = 0; seed < runs.size(); ++seed) {
      found.push_back(examine(run_folder(flags.training.out, member.recipe, static_cast<int64_t>(seed)), corpus,
                              examination(*flags.study, wanted.lengths, wanted.tokens, entry, false),
                              runs[seed].steps));
    }
    Report::Member m = member_of(member.recipe, runs, found, "");
    m.name = entry.name, m.applied = member.recipe.name, m.group = entry.group;
    m.curves.clear(), m.warnings.clear(), m.about = text(member.recipe.name, ", read with other settings");
    for (const auto& assignment : assignments(entry.set)) m.setting += (m.setting.empty() ? "" : "; ") + assignment;
    results.applied.push_back(std::move(m));
    results.found[entry.name] = std::move(found);
  }
}

Report frame(const CompareFlags& flags, const Corpus& corpus, const Members& members, const std::string& budget) {
  Report report;
  report.command = command_line;
  report.created = now_words();
  report.machine = machine_words();
  report.version = KINFOLK_VERSION;
  report.data = text(corpus.path, ": ", human_bytes(static_cast<double>(corpus.train.size())), " to train, ",
                     human_bytes(static_cast<double>(corpus.valid.size())), " held out (", corpus.split, ")");
  report.budget = text(human_count(static_cast<double>(parse_count(budget, "--budget"))), " parameters within 1 %, ",
                       flags.training.budget_words(members[0].recipe, members[0].size), ", ", flags.seeds,
                       flags.seeds == 1 ? " seed" : " seeds");
  report.trained_length = members[0].size.context;
  return report;
}

void run_compare(CompareFlags& flags, int& status) {
  const fs::path out = flags.training.out;
  const Corpus corpus = flags.training.corpus();
  if (corpus.images.any()) {
    refuse("[compare] expected a text; found images, which train and eval measure: ", corpus.path);
  }
  std::string budget;
  const Members members = plan(flags, corpus, budget);
  Examination wanted;
  wanted.lengths = lengths_of(flags, members[0].size.context, corpus);
  wanted.tokens = flags.score_tokens;
  wanted.prompt = flags.prompt;

  Report empty = frame(flags, corpus, members, budget), report;
  if (flags.study) {
    wanted = examination(*flags.study, wanted.lengths, wanted.tokens, members[0].entry, true);
    empty.title = flags.study->about.empty() ? flags.study->name : flags.study->about;
    empty.last_bytes = wanted.last, empty.windows = wanted.windows, empty.reference = flags.study->settings.reference;
    check_windows(corpus, wanted);
  }
  std::cerr << empty.data << "\n";
  add_baselines(empty, corpus);
  Results results;
  std::string failed;
  for (const auto& member : members) {
    const auto& [recipe, size, entry] = member;
    try {
      std::vector<RunSummary> runs;
      Found found;
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
        if (flags.study) {
          wanted = examination(*flags.study, wanted.lengths, wanted.tokens, entry, true);
        } else {
          wanted.full = seed == 0;
        }
        found.push_back(examine(one.out, corpus, wanted, runs.back().steps));
      }
      if (found[0].contains("sight")) add_picture(empty, recipe.name, found[0]);
      results.trained.push_back(member_of(recipe, runs, found, wanted.prompt));
      results.trained.back().group = entry.group;
      results.found[recipe.name] = std::move(found);
      if (flags.study) examine_applied(flags, corpus, member, runs, wanted, results);
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {  // one member's failure does not take the others with it
      std::cerr << "kinfolk: " << recipe.name << " failed: " << error.what() << "\n";
      empty.warnings.push_back(text(recipe.name, " failed and is left out: ", error.what()));
      failed += (failed.empty() ? "" : ", ") + recipe.name;
      if (results.trained.empty()) continue;
    }
    // The page is written after every member, so that a long comparison can be looked at while it runs.
    report = with_members(empty, results);
    write_report(out, report);
  }
  if (results.trained.empty()) fail("[compare] expected a member with a result; found none: ", failed, " failed");
  print_table(report);
  std::cout << "\n"
            << verdict(report).sentence << "\n"
            << (fs::absolute(out) / "report.html").lexically_normal().string() << "\n";
  if (!failed.empty()) fail("[compare] expected a result of every member; found that ", failed, " failed");
}

/// One word that is no recipe's name but a study's, or the path of one, stands for all its members.
void read_words(CompareFlags& flags, const CLI::App& command) {
  const auto recipes = recipe_names();
  for (const auto& name : flags.recipes) {
    if (std::find(recipes.begin(), recipes.end(), name) != recipes.end()) continue;
    const std::string file = study_file(name);
    if (file.empty()) continue;
    if (flags.recipes.size() > 1) refuse("[compare] expected a study alone; found ", name, " among several words");
    flags.study = read_study(file);
    if (flags.study->scaling) return;
    if (command.count("--size") == 0) flags.training.size = flags.study->settings.size;
    if (command.count("--prompt") > 0) {
      refuse("[--prompt] expected recipes, which write a sample each; found the study ", name);
    }
  }
}

/// A study of scaling trains nothing: of the flags, three have an effect.
int run_scaling(CompareFlags& flags, const CLI::App& command) {
  for (const auto* option : command.get_options()) {
    const std::string name = option->get_lnames().empty() ? "" : "--" + option->get_lnames()[0];
    if (option->count() == 0 || name.empty() || name == "--out" || name == "--size" || name == "--lengths") continue;
    refuse("[", name, "] expected none with a study of scaling, which trains nothing; found it");
  }
  ScalingSettings& settings = *flags.study->scaling;
  if (command.count("--size") > 0) settings.size = flags.training.size;
  if (!flags.lengths.empty()) {
    settings.lengths = parse_counts(flags.lengths, "--lengths");
    std::sort(settings.lengths.begin(), settings.lengths.end());
    settings.lengths.erase(std::unique(settings.lengths.begin(), settings.lengths.end()), settings.lengths.end());
    check_scaling_lengths(*flags.study);
  }
  return compare_scaling(*flags.study, flags.training.out);
}

}  // namespace

void add_compare(CLI::App& app, int& status) {
  auto flags = std::make_shared<CompareFlags>();
  auto* command = app.add_subcommand(
      "compare", "Train members side by side on your own text at equal budget, measure them, and write one report");
  command
      ->add_option("recipe", flags->recipes,
                   "Names of recipes (see kinfolk list), or paths of .toml files of your own; or one study, which "
                   "lists its members (recipes/studies)")
      ->required()
      ->type_name("");
  flags->training.add_to(*command);
  command->get_option("--data")->required(false);  // a study of tasks brings its own
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
      "member in RECIPE/seed-N. A comparison that was stopped goes on when the same command is given again. A study\n"
      "with [scaling] trains nothing: it measures time and memory of a layer by length, with --out, --size, "
      "--lengths.\n"
      "Example: kinfolk compare rope window deltanet --data BOOK.txt --out runs/first");
  command->callback([flags, command, &status] {
    read_words(*flags, *command);
    if (flags->study && flags->study->scaling) {
      status = run_scaling(*flags, *command);
      return;
    }
    if (flags->study && !flags->study->tasks.empty()) {
      for (const char* name : {"--data", "--valid", "--lengths", "--score-tokens"}) {
        if (command->count(name) > 0) refuse("[", name, "] expected none with a study of tasks; found it");
      }
      status = compare_tasks(*flags->study, flags->training, flags->seeds);
      return;
    }
    if (flags->training.data.empty()) refuse("[--data] expected a text, images or a task; found none");
    if (holds_recall(flags->training.data)) {
      for (const char* name : {"--lengths", "--score-tokens", "--prompt"}) {
        if (command->count(name) > 0) refuse("[", name, "] expected none with a task, which has no text; found it");
      }
      if (flags->study) refuse("[compare] expected recipes with a task; found a study of texts");
      status = compare_recall(flags->recipes, flags->training.corpus(), flags->training, flags->seeds);
      return;
    }
    run_compare(*flags, status);
  });
}

}  // namespace kinfolk
