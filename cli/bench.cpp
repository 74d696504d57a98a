// bench: how fast members are on this machine, and the operators that carry them beside libtorch's own.
#include <ATen/Parallel.h>

#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/bench_approximate.h"
#include "cli/bench_retrieve.h"
#include "cli/bench_stream.h"
#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/bench_attend.h"
#include "kinfolk/eval/bench_memory.h"
#include "kinfolk/eval/bench_scan.h"
#include "kinfolk/eval/throughput.h"
#include "kinfolk/kernels/isa.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

struct MemberFlags {
  std::vector<std::string> names;
  std::string size = "tiny", budget, lengths = "512,1024,2048,4096";
  bool json = false;
};

void bench_members(const MemberFlags& flags) {
  const auto names = flags.names.empty() ? recipe_names() : flags.names;
  const auto lengths = parse_counts(flags.lengths, "--lengths");
  for (const auto& name : names) resolve(name, flags.size, {}, flags.budget);  // all are refused before one is measured
  nlohmann::json rows = nlohmann::json::array();
  if (!flags.json) {
    std::printf("%-20s %8s %12s %12s %12s %12s %12s\n", "member", "length", "train tok/s", "read tok/s", "decode tok/s",
                "state", "train peak");
  }
  for (const auto& name : names) {
    const auto [recipe, size] = resolve(name, flags.size, {}, flags.budget);
    const auto model = Model::make(recipe, size, 1);
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    if (const int64_t last = model->traits().context; last > 0 && longest + kDecodeSteps > last) {
      std::cerr << name << ": its positions end at " << last << "; longer lengths are left out\n";
    }
    for (const auto& t : measure(*model, lengths)) {
      if (flags.json) {
        rows.push_back({{"member", name},
                        {"length", t.length},
                        {"train_tokens_per_second", t.train},
                        {"read_tokens_per_second", t.read},
                        {"decode_tokens_per_second", t.decode},
                        {"state_bytes", t.state_bytes},
                        {"train_peak_bytes", t.train_peak},
                        {"read_peak_bytes", t.read_peak}});
      } else {
        std::printf("%-20s %8lld %12.0f %12.0f %12.0f %12s %12s\n", name.c_str(), static_cast<long long>(t.length),
                    t.train, t.read, t.decode, human_bytes(static_cast<double>(t.state_bytes)).c_str(),
                    human_bytes(static_cast<double>(t.train_peak)).c_str());
        std::fflush(stdout);
      }
    }
  }
  if (flags.json) std::cout << rows.dump(1) << "\n";
}

struct Operator {
  const char *name, *about;
  const std::vector<std::pair<std::string, std::string>>& (*groups)();
  void (*run)(BenchRun&);
};
constexpr Operator kOperators[] = {
    {"attend", "Softmax attention beside libtorch's own (SDPA)", bench_attend_groups, bench_attend},
    {"scan", "Recurrences beside attention and beside the same in torch operators", bench_scan_groups, bench_scan},
    {"memory", "Reading with a memory beside computing the context anew for every token", bench_memory_groups,
     bench_memory}};

struct OperatorFlags {
  std::vector<std::string> groups;
  std::string lengths;
  int64_t threads = 1;
  bool full = false, json = false;
};

void bench_operator(const Operator& which, const OperatorFlags& flags) {
  std::vector<std::string> known;
  for (const auto& [group, about] : which.groups()) known.push_back(group);
  for (const auto& group : flags.groups) {
    if (std::find(known.begin(), known.end(), group) != known.end()) continue;
    refuse("[bench ", which.name, "] expected a group of its rows; found ", group, suggest(group, known));
  }
  if (flags.threads > 1024) refuse("[--threads] expected at most 1024; found ", flags.threads);
  at::set_num_threads(static_cast<int>(flags.threads));
  std::vector<BenchRow> rows;
  BenchOptions options;
  options.groups = flags.groups;
  if (!flags.lengths.empty()) options.lengths = parse_counts(flags.lengths, "--lengths");
  options.full = flags.full;
  options.wall = flags.threads > 1;
  Progress progress(std::string("bench ") + which.name, 0);
  options.note = [&](const std::string& note) { progress.update(static_cast<double>(rows.size()), note); };
  std::string group;
  options.row = [&](const BenchRow& row) {
    rows.push_back(row);
    if (flags.json) return;
    progress.finish();
    if (row.group != group) std::printf("%s\n", row.group.c_str());
    group = row.group;
    std::printf("  %s\n", bench_line(row).c_str());
    std::fflush(stdout);
  };
  if (!flags.json) {
    std::printf("%lld thread%s, %s time, kernels for %s; \"!\" marks a ratio that misses its goal\n",
                static_cast<long long>(flags.threads), flags.threads > 1 ? "s" : "", options.wall ? "wall" : "CPU",
                kernels::isa_name());
    std::printf("  %s\n", bench_heading().c_str());
    std::fflush(stdout);
  }
  BenchRun run(options);
  which.run(run);
  progress.finish();
  if (flags.json) std::cout << bench_json(rows) << "\n";
}

void add_operator(CLI::App& bench, const Operator& which) {
  auto flags = std::make_shared<OperatorFlags>();
  auto* command = bench.add_subcommand(which.name, which.about);
  command->add_option("rows", flags->groups, "Which rows (below); nothing: all")->type_name("");
  command->add_option("--lengths", flags->lengths, "Lengths of every row, instead of its own")->type_name("LIST");
  add_count(*command, "--threads", flags->threads, 1, "Threads; with several, wall time is measured");
  command->add_flag("--full", flags->full, "Also the lengths that take minutes");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  std::string rows = "Rows:\n";
  for (const auto& [group, about] : which.groups()) {
    rows +=
        "  " + group + std::string(std::max<size_t>(1, 16 - std::min<size_t>(group.size(), 15)), ' ') + about + "\n";
  }
  command->footer(
      rows +
      "Both sides of a row run in turns in this process; times are medians, the ratio is the median of the\n"
      "rounds' own ratios, and beside it stands what a product of 1024 x 1024 matrices reached in the same\n"
      "rounds.");
  command->callback([&which, flags] { bench_operator(which, *flags); });
}

}  // namespace

void add_bench(CLI::App& app, int&) {
  auto flags = std::make_shared<MemberFlags>();
  auto* command = app.add_subcommand("bench", "Speed, state and memory of members by length, on random bytes");
  command->add_option("name", flags->names, "Recipes; nothing: all")->type_name("");
  command->add_option("--size", flags->size, "How large: tiny, small, base, or the path of a .toml file like theirs")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--budget", flags->budget, "Parameters, such as 10M: the width is solved to meet it")
      ->type_name("NUMBER");
  command->add_option("--lengths", flags->lengths, "Lengths in bytes")->capture_default_str()->type_name("LIST");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->require_subcommand(0, 1);
  for (const Operator& which : kOperators) add_operator(*command, which);
  add_bench_stream(*command);
  add_bench_retrieve(*command);
  add_bench_approximate(*command);
  // The words before an operator are of this command, and would have no effect.
  command->parse_complete_callback([command] {
    const auto chosen = command->get_subcommands();
    if (chosen.empty()) return;
    for (const auto* option : command->get_options()) {
      if (option->count() == 0) continue;
      refuse("[bench] expected nothing between bench and ", chosen.front()->get_name(), "; found ",
             option->get_positional() ? option->results().front() : option->get_name());
    }
  });
  command->final_callback([command, flags] {
    if (command->get_subcommands().empty()) bench_members(*flags);
  });
}

}  // namespace kinfolk
