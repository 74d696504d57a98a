// compare: members trained side by side on one text at equal budget, measured beyond the trained length, on one page.
#include <ATen/Parallel.h>
#include <sys/utsname.h>

#include <chrono>
#include <ctime>
#include <iostream>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/training.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/generate.h"
#include "kinfolk/eval/ngram.h"
#include "kinfolk/eval/perplexity.h"
#include "kinfolk/eval/report.h"
#include "kinfolk/eval/sight.h"
#include "kinfolk/eval/throughput.h"
#include "kinfolk/eval/verdict.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct CompareFlags {
  TrainingFlags training;
  std::vector<std::string> recipes;
  std::string lengths, score_tokens = "64k", prompt = "It was ";
  int64_t seeds = 1;
};

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

/// What is measured once training is over. Kept beside the run, so that a comparison that was stopped goes on.
json examine(const fs::path& run, const Corpus& corpus, const std::vector<int64_t>& lengths, const CompareFlags& flags,
             bool full) {
  const fs::path kept = run / "examined.json";
  if (fs::exists(kept)) return json::parse(std::ifstream(kept));
  auto loaded = load_run(run.string(), true);
  Model& model = *loaded.model;
  const std::string name = run.parent_path().filename().string();
  if (model.head().wants_store()) {
    Progress progress("store " + name, 1.0);
    fill_store(model, corpus.train.bytes, 200000, [&](double share) { progress.update(share); });
  }
  json out;
  ScoreOptions options;
  options.lengths = lengths;
  options.tokens = parse_count(flags.score_tokens, "--score-tokens");
  if (model.head().wants_store()) options.tokens = std::min<int64_t>(options.tokens, 8192);
  {
    Progress progress("score " + name, 1.0);
    options.progress = [&](double share) { progress.update(share); };
    const Scores scores = score(model, corpus.valid.bytes, options);
    for (const auto& s : scores.lengths) {
      out["lengths"].push_back({{"length", s.length},
                                {"bits", s.bits},
                                {"error", s.error},
                                {"mode", s.mode},
                                {"tokens", s.tokens},
                                {"speed", s.tokens_per_second},
                                {"peak", s.peak_growth},
                                {"state", s.state_bytes}});
    }
    for (const auto& p : scores.positions) {
      out["positions"].push_back({{"from", p.from}, {"to", p.to}, {"bits", p.bits}, {"error", p.error}});
    }
  }
  if (full) {
    GenerateOptions generating;
    generating.tokens = 300;
    const Generated sample = generate(model, flags.prompt, generating);
    out["sample"] = sample.text;
    out["policy"] = sample.policy;
    for (const auto& t : measure(model, lengths, 512, true)) {
      out["speed"].push_back({{"length", t.length},
                              {"train", t.train},
                              {"read", t.read},
                              {"decode", t.decode},
                              {"state", t.state_bytes},
                              {"train_peak", t.train_peak},
                              {"read_peak", t.read_peak}});
    }
    const int64_t window = std::min<int64_t>(model.size().context * (model.traits().context > 0 ? 1 : 2),
                                             static_cast<int64_t>(corpus.valid.bytes.size()));
    const Tensor seen = sight(model, gather_tokens(corpus.valid.bytes, {0}, 0, window).squeeze(0), 64)
                            .to(at::kFloat)
                            .sqrt()
                            .contiguous();
    out["sight"] = std::vector<float>(seen.const_data_ptr<float>(), seen.const_data_ptr<float>() + seen.numel());
    out["sight_length"] = window;
  }
  std::ofstream file(kept);
  file << out.dump(-1, ' ', false, json::error_handler_t::replace);
  file.flush();
  if (!file) fail("[compare] expected to write ", kept.string(), "; found no room or no permission");
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

void write_file(const fs::path& path, const std::string& words) {
  const fs::path draft = path.string() + ".part";
  std::ofstream out(draft, std::ios::binary);
  out << words;
  out.flush();
  if (!out) {
    std::error_code ignored;
    out.close();
    fs::remove(draft, ignored);
    fail("[compare.--out] expected to write ", path.string(), "; found no room or no permission");
  }
  out.close();
  fs::rename(draft, path);
}

void run_compare(CompareFlags& flags, int& status) {
  const fs::path out = flags.training.out;
  const Corpus corpus = flags.training.corpus();
  std::vector<std::pair<Recipe, Size>> members;
  std::string budget = flags.training.budget;
  for (const auto& name : flags.recipes) {
    for (const auto& other : members)
      if (other.first.name == load_recipe(name).name)
        refuse("[compare] expected each recipe once; found ", name, " twice");
    members.push_back(resolve(name, flags.training.size, flags.training.sets, budget));
    // Without --budget the first member, at the width of its size, sets the number of parameters for all.
    if (budget.empty()) {
      budget = std::to_string(Model::make(members[0].first, members[0].second, 1, at::TensorOptions().device(at::kMeta))
                                  ->parameter_count());
    }
  }
  const int64_t context = members[0].second.context;
  std::vector<int64_t> lengths = flags.lengths.empty()
                                     ? std::vector<int64_t>{context, 2 * context, 4 * context, 8 * context}
                                     : parse_counts(flags.lengths, "--lengths");
  if (lengths.front() > static_cast<int64_t>(corpus.valid.bytes.size()) - 1) {
    fail("[compare.--data] expected at least ", lengths.front() + 1, " bytes that validate; found ",
         corpus.valid.bytes.size());
  }
  std::erase_if(lengths, [&](int64_t l) { return l >= corpus.valid.size(); });

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
  for (int order = 1; order <= 3; ++order) {
    NgramModel ngram(order);
    for (size_t d = 0; d < corpus.train.documents.size(); ++d) ngram.train(corpus.train.document(d));
    report.baselines.push_back({text("order-", order, " bytes"), ngram.bits(corpus.valid.bytes)});
  }
  for (const auto& [recipe, size] : members) {
    std::vector<RunSummary> runs;
    std::vector<json> found;
    for (int64_t seed = 0; seed < flags.seeds; ++seed) {
      TrainingFlags one = flags.training;
      one.out = (out / recipe.name / text("seed-", seed + 1)).string();
      one.seed_offset = seed;
      one.title = flags.seeds > 1 ? text(recipe.name, " seed ", seed + 1) : recipe.name;
      runs.push_back(train_member(recipe, size, corpus, one, true));
      if (runs.back().interrupted) {
        std::cerr << "stopped; what was trained is kept: the same command goes on from here\n";
        status = 130;
        return;
      }
      found.push_back(examine(one.out, corpus, lengths, flags, seed == 0));
    }
    report.members.push_back(member_of(recipe, runs, found, flags.prompt));
    if (found[0].contains("sight")) {
      Report::Pattern picture;
      picture.name = recipe.name;
      picture.about = text("which of ", found[0]["sight_length"].get<int64_t>(),
                           " bytes (across) changes which prediction (down), trained");
      picture.rows = picture.columns = 64;
      picture.weights = found[0]["sight"].get<std::vector<float>>();
      report.patterns.push_back(std::move(picture));
    }
    // The page is written after every member, so that a long comparison can be looked at while it runs.
    write_file(out / "report.html", html(report));
    write_file(out / "report.json", kinfolk::json(report));
  }
  print_table(report);
  std::cout << "\n"
            << verdict(report).sentence << "\n"
            << (fs::absolute(out) / "report.html").lexically_normal().string() << "\n";
}

}  // namespace

void add_compare(CLI::App& app, int& status) {
  auto flags = std::make_shared<CompareFlags>();
  auto* command =
      app.add_subcommand("compare", "Train members side by side on your own text at equal budget; one report");
  command->add_option("recipe", flags->recipes, "Names or paths of recipes")->required();
  flags->training.add_to(*command);
  command->add_option("--lengths", flags->lengths,
                      "Lengths of evaluation, in bytes (1, 2, 4 and 8 times the trained length)");
  command->add_option("--score-tokens", flags->score_tokens, "Bytes scored at each length, at most")
      ->capture_default_str();
  command->add_option("--seeds", flags->seeds, "Repeat each member with this many seeds and show the spread")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--prompt", flags->prompt, "Start of the sample that each member writes")->capture_default_str();
  command->callback([flags, &status] { run_compare(*flags, status); });
}

}  // namespace kinfolk
