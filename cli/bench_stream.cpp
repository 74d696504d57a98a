#include "cli/bench_stream.h"

#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/endless.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

struct StreamFlags {
  std::vector<std::string> names, sets;
  std::string size = "tiny", tokens = "10M", memory_limit;
  EndlessOptions options;
  bool json = false;
};

/// The members that can read without end: those asked for, or all whose state is bounded or limited.
std::vector<std::string> members_of(const StreamFlags& flags) {
  if (!flags.names.empty()) return flags.names;
  std::vector<std::string> out;
  for (const auto& name : recipe_names()) {
    const auto [recipe, size] = resolve(name, flags.size, flags.sets, "");
    const auto model = Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta));
    const Traits traits = model->traits();
    if (!traits.streams || traits.context > 0) continue;
    if (flags.options.memory_limit > 0 || model->most_bytes(1) >= 0) out.push_back(name);
  }
  return out;
}

std::string micro(double seconds) {
  char out[32];
  std::snprintf(out, sizeof out, "%.1f", seconds * 1e6);
  return out;
}

void print_row(const std::string& name, const Endless& e) {
  const auto bytes = [](int64_t n) { return human_bytes(static_cast<double>(n)); };
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "%10s %10s %12s %12s %12s %9s %9s %7.3f %9.1e", human_count(e.read).c_str(),
                bytes(e.state_bytes).c_str(), bytes(e.resident_early).c_str(), bytes(e.resident_late).c_str(),
                bytes(e.peak_growth).c_str(), micro(e.early_step).c_str(), micro(e.late_step).c_str(), e.ratio,
                e.drift);
  std::printf("%-20s %s", name.c_str(), numbers);
  if (e.drift_twice >= 0) std::printf(" %9.1e", e.drift_twice);
  std::printf("  %s\n", e.policy.c_str());
  std::fflush(stdout);
}

void run_stream(StreamFlags& flags) {
  EndlessOptions& options = flags.options;
  options.tokens = parse_count(flags.tokens, "--tokens", 2);
  if (!flags.memory_limit.empty()) options.memory_limit = parse_count(flags.memory_limit, "--memory-limit", 1);
  const auto names = members_of(flags);
  for (const auto& name : names) {  // all are refused before one is measured
    const auto [recipe, size] = resolve(name, flags.size, flags.sets, "");
    check_endless(*Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta)), options);
  }
  nlohmann::json rows = nlohmann::json::array();
  if (!flags.json) {
    std::printf("%-20s %10s %10s %12s %12s %12s %9s %9s %7s %9s%s  kept\n", "member", "tok/s", "state", "RSS early",
                "RSS late", "peak above", "us early", "us late", "ratio", "drift", options.twice ? "     twice" : "");
    std::fflush(stdout);
  }
  for (const auto& name : names) {
    const auto [recipe, size] = resolve(name, flags.size, flags.sets, "");
    const auto model = Model::make(recipe, size, 1);
    Progress progress("stream " + name, 1.0);
    options.progress = [&](double share, const std::string& what) { progress.update(share, what); };
    const Endless found = read_endless(*model, options);
    progress.finish();
    if (!flags.json) {
      print_row(name, found);
      continue;
    }
    rows.push_back({{"member", name},
                    {"tokens", found.tokens},
                    {"tokens_per_second", found.read},
                    {"state_bytes", found.state_bytes},
                    {"most_bytes", found.most_bytes},
                    {"resident_early", found.resident_early},
                    {"resident_late", found.resident_late},
                    {"peak_growth", found.peak_growth},
                    {"early_step_seconds", found.early_step},
                    {"late_step_seconds", found.late_step},
                    {"late_over_early", found.ratio},
                    {"drift", found.drift},
                    {"policy", found.policy}});
    if (found.drift_twice >= 0) rows.back()["drift_twice"] = found.drift_twice;
  }
  if (flags.json) std::cout << rows.dump(1) << "\n";
}

}  // namespace

void add_bench_stream(CLI::App& bench) {
  auto flags = std::make_shared<StreamFlags>();
  auto* command = bench.add_subcommand("stream", "A text without end: memory, time a token early and late, drift");
  command->add_option("name", flags->names, "Recipes; nothing: all whose state is bounded")->type_name("");
  command->add_option("--tokens", flags->tokens, "Random tokens that each reads")
      ->capture_default_str()
      ->type_name("NUMBER");
  command->add_option("--size", flags->size, "How large: tiny, small, base, or the path of a .toml file like theirs")
      ->capture_default_str()
      ->type_name("NAME");
  add_set(*command, flags->sets, "Changes a setting of the recipes; may be repeated");
  add_count(*command, "--chunk", flags->options.chunk, 1, "Tokens of one call");
  command
      ->add_option("--memory-limit", flags->memory_limit,
                   "Bytes of state: also members that keep every key can read without end")
      ->type_name("NUMBER");
  add_choice(*command, "--at-limit", flags->options.at_limit, {"drop", "refeed"}, "What happens there, as in generate");
  add_number(*command, "--seconds", flags->options.seconds, "About so long the steps of each member are timed");
  command->add_flag("--twice", flags->options.twice,
                    "Read all of it again in other pieces, and compare the last scores");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer(
      "RSS: resident memory of the program after the first 65536 tokens and at the end, and its peak above the first.\n"
      "us: microseconds a token, one at a time, from the states at those two places (the later one up to 4095 tokens\n"
      "on, so that both stand alike in their segments), timed in turns (CPU time, medians); ratio: late over early,\n"
      "the median of the rounds' own. drift: the last 4096 tokens' scores read in other pieces, largest difference "
      "over\n"
      "largest score.\n"
      "Example: kinfolk bench stream window transformer_xl deltanet --tokens 1M");
  command->callback([flags] { run_stream(*flags); });
}

}  // namespace kinfolk
