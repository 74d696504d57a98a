// eval: bits per byte of held-out text by length and by position.
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/store.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/perplexity.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

struct EvalFlags {
  std::string run, data, lengths, mode = "auto", checkpoint = "last", store;
  int64_t tokens = 0, chunk = 512;
  std::vector<std::string> sets;
  bool json = false, whole = false;
};

/// 1, 2, 4 and 8 times the trained length, as far as the text goes.
std::vector<int64_t> usual_lengths(int64_t context, int64_t bytes) {
  std::vector<int64_t> out;
  for (const int64_t times : {1, 2, 4, 8})
    if (times * context < bytes) out.push_back(times * context);
  if (out.empty()) return {context};  // the text is too short: said by `check_scorable`
  if (out.size() < 4) {
    std::cerr << "lengths up to " << out.back() << ": the text has " << bytes << " bytes\n";
  }
  return out;
}

void print_json(const Scores& scores) {
  nlohmann::json out;
  for (const auto& s : scores.lengths) {
    out["lengths"].push_back({{"length", s.length},
                              {"bits_per_byte", s.bits},
                              {"error", s.error},
                              {"mode", s.mode},
                              {"tokens", s.tokens},
                              {"tokens_per_second", s.tokens_per_second},
                              {"state_bytes", s.state_bytes},
                              {"peak_growth_bytes", s.peak_growth}});
  }
  for (const auto& p : scores.positions) {
    out["positions"].push_back({{"from", p.from}, {"to", p.to}, {"bits_per_byte", p.bits}, {"error", p.error}});
  }
  std::cout << out.dump(1) << "\n";
}

std::string error_text(double error) {
  if (!std::isfinite(error)) return "-";  // one window has no spread
  char out[32];
  std::snprintf(out, sizeof out, "%.4f", error);
  return out;
}

void print_table(const Scores& scores) {
  std::printf("%9s %9s %9s %10s %12s %12s  %s\n", "length", "bits/byte", "+-", "bytes", "bytes/s", "state", "mode");
  for (const auto& s : scores.lengths) {
    std::printf("%9lld %9.4f %9s %10lld %12.0f %12s  %s\n", static_cast<long long>(s.length), s.bits,
                error_text(s.error).c_str(), static_cast<long long>(s.tokens), s.tokens_per_second,
                human_bytes(static_cast<double>(s.state_bytes)).c_str(), s.mode.c_str());
  }
  std::printf("\n%9s %9s %9s %9s   of the longest\n", "from", "to", "bits/byte", "+-");
  for (const auto& p : scores.positions) {
    std::printf("%9lld %9lld %9.4f %9s\n", static_cast<long long>(p.from), static_cast<long long>(p.to), p.bits,
                error_text(p.error).c_str());
  }
}

void run_eval(const EvalFlags& flags) {
  ScoreOptions options;
  if (!flags.lengths.empty()) options.lengths = parse_counts(flags.lengths, "--lengths");
  const std::string file = checkpoint_file(flags.run, flags.checkpoint);
  const Bytes text = flags.whole ? read_text(flags.data).bytes : read_corpus(flags.data).valid.bytes;
  auto loaded = load_run(file, true, flags.sets);
  Model& model = *loaded.model;
  const auto size = static_cast<int64_t>(text.size());
  if (flags.lengths.empty()) options.lengths = usual_lengths(model.size().context, size);
  check_scorable(model, text, options.lengths, flags.mode);
  prepare_store(loaded, flags.store);
  const bool searches = model.head().wants_store() && flags.store != "none";
  options.tokens = flags.tokens > 0 ? flags.tokens : searches ? 8192 : 65536;
  options.chunk = flags.chunk;
  options.mode = flags.mode;
  Progress progress("scoring", 1.0);
  options.progress = [&](double share) { progress.update(share); };
  const Scores scores = score(model, text, options);
  progress.finish();
  if (flags.json) {
    print_json(scores);
  } else {
    print_table(scores);
  }
}

}  // namespace

void add_eval(CLI::App& app, int&) {
  auto flags = std::make_shared<EvalFlags>();
  auto* command =
      app.add_subcommand("eval", "Measure a trained run: bits per byte of a text, by length and by position");
  command->add_option("run", flags->run, "Folder of a run (what train made), or a checkpoint file")
      ->required()
      ->type_name("");
  command->add_option("--data", flags->data, "File or folder, any bytes; the part of it that train holds out is scored")
      ->required()
      ->type_name("PATH");
  command->add_flag("--whole", flags->whole, "Score all of --data, not the held-out part");
  command
      ->add_option("--lengths", flags->lengths,
                   "Bytes read at once, a list such as 512,4096; without it 1, 2, 4 and 8 times the trained length")
      ->type_name("LIST");
  add_count(*command, "--tokens", flags->tokens, 1,
            "Bytes scored at each length, at most (one window at least); without it 64Ki, or 8Ki where a datastore is "
            "searched")
      ->default_str("");
  add_count(*command, "--chunk", flags->chunk, 1, "Bytes of one call while streaming: changes speed and memory alone");
  add_choice(*command, "--mode", flags->mode, {"auto", "stream", "blocks"},
             "stream: one state is carried over the whole length; blocks: a fresh state every trained length; auto: "
             "stream where the member can");
  command->add_option("--checkpoint", flags->checkpoint, "last, best, or the name of a numbered one")
      ->capture_default_str()
      ->type_name("NAME");
  command
      ->add_option("--store", flags->store,
                   "Members with a datastore (knn_lm): the text that fills it; without it the text that the run was "
                   "trained on; none: do without")
      ->type_name("PATH");
  add_set(*command, flags->sets, "Changes a setting of the recipe for this evaluation; may be repeated");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer(
      "Windows of each length are spread evenly over the text; each starts from nothing. The error bar (+-) is the\n"
      "standard error over windows. Example: kinfolk eval runs/rope --data BOOK.txt --lengths 256,1024,4096");
  command->callback([flags] { run_eval(*flags); });
}

}  // namespace kinfolk
