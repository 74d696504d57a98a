// eval: bits per byte of held-out text by length and by position. generate: text from a run.
#include <fstream>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/eval/generate.h"
#include "kinfolk/eval/perplexity.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/data/bytes.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

/// A run folder's last or best checkpoint; a checkpoint file is itself.
std::string chosen(const std::string& run, const std::string& checkpoint) {
  if (!std::filesystem::is_directory(run)) return run;
  return (std::filesystem::path(run) / "checkpoints" / (checkpoint + ".safetensors")).string();
}

struct EvalFlags {
  std::string run, data, lengths = "512,1024,2048,4096", tokens = "64k", mode = "auto", chunk = "512",
                         checkpoint = "last";
  std::vector<std::string> sets;
  bool json = false, whole = false;
};

void run_eval(const EvalFlags& flags) {
  auto loaded = load_run(chosen(flags.run, flags.checkpoint), true, flags.sets);
  const Bytes text = flags.whole ? read_text(flags.data).bytes : read_corpus(flags.data).valid.bytes;
  ScoreOptions options;
  options.lengths = parse_counts(flags.lengths, "--lengths");
  options.tokens = parse_count(flags.tokens, "--tokens");
  options.chunk = std::max<int64_t>(1, parse_count(flags.chunk, "--chunk"));
  options.mode = flags.mode;
  Progress progress("scoring", 1.0);
  options.progress = [&](double share) { progress.update(share); };
  const Scores scores = score(*loaded.model, text, options);
  progress.finish();
  if (flags.json) {
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
    return;
  }
  std::printf("%9s %9s %9s %10s %12s %12s  %s\n", "length", "bits/byte", "+-", "bytes", "bytes/s", "state", "mode");
  for (const auto& s : scores.lengths) {
    std::printf("%9lld %9.4f %9.4f %10lld %12.0f %12s  %s\n", static_cast<long long>(s.length), s.bits, s.error,
                static_cast<long long>(s.tokens), s.tokens_per_second,
                human_bytes(static_cast<double>(s.state_bytes)).c_str(), s.mode.c_str());
  }
  std::printf("\n%19s %9s %9s\n", "positions", "bits/byte", "+-");
  for (const auto& p : scores.positions) {
    std::printf("%9lld %9lld %9.4f %9.4f\n", static_cast<long long>(p.from), static_cast<long long>(p.to), p.bits,
                p.error);
  }
}

struct GenerateFlags {
  std::string run, prompt, file, memory_limit, tokens = "256", checkpoint = "last", stdin_mark;
  std::vector<std::string> sets;
  GenerateOptions options;
  int64_t samples = 1;
  bool json = false, quiet = false;
};

std::string prompt_of(const GenerateFlags& flags) {
  const bool from_stdin = flags.stdin_mark == "-";
  if (!flags.stdin_mark.empty() && !from_stdin) refuse("[generate] expected RUN, or RUN -; found ", flags.stdin_mark);
  if ((!flags.prompt.empty()) + (!flags.file.empty()) + from_stdin > 1) {
    refuse("[generate] expected one of --prompt, --prompt-file, -; found several");
  }
  std::ostringstream text;
  if (from_stdin) text << std::cin.rdbuf();
  if (!flags.file.empty()) {
    std::ifstream in(flags.file, std::ios::binary);
    if (in) text << in.rdbuf();
    if (!in && !in.eof()) refuse("[generate.--prompt-file] expected a readable file; found ", flags.file);
  }
  return flags.prompt.empty() ? text.str() : flags.prompt;
}

void run_generate(const GenerateFlags& flags) {
  GenerateOptions options = flags.options;
  options.tokens = flags.tokens == "-1" ? -1 : parse_count(flags.tokens, "--tokens");
  if (!flags.memory_limit.empty()) options.memory_limit = parse_count(flags.memory_limit, "--memory-limit");
  const std::string prompt = prompt_of(flags);
  auto loaded = load_run(chosen(flags.run, flags.checkpoint), true, flags.sets);
  watch_interrupts();
  for (int64_t sample = 0; sample < flags.samples; ++sample) {
    GenerateOptions one = options;
    one.sampler.seed = options.sampler.seed + static_cast<uint64_t>(sample);
    if (flags.samples > 1) std::cerr << "sample " << sample + 1 << ", seed " << one.sampler.seed << "\n";
    const Generated result = generate(*loaded.model, prompt, one, [&](const Piece& piece) {
      if (flags.json) {
        nlohmann::json line = {{"text", std::string(piece.text)}};
        if (piece.token >= 0) line["token"] = piece.token, line["log_probability"] = piece.log_probability;
        std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
      } else {
        std::cout << piece.text;
      }
      std::cout.flush();
      return static_cast<bool>(std::cout) && !asked_to_stop();
    });
    if (!flags.json) std::cout << "\n";
    if (!flags.quiet) {
      std::fprintf(
          stderr,
          "ended by %s; prompt %lld bytes at %.0f/s, %lld new at %.0f/s; state %s, at most %s; policy: %s%s; peak %s\n",
          result.ended.c_str(), static_cast<long long>(result.prompt_tokens),
          static_cast<double>(result.prompt_tokens) / std::max(1e-9, result.prompt_seconds),
          static_cast<long long>(result.tokens),
          static_cast<double>(result.tokens) / std::max(1e-9, result.decode_seconds),
          human_bytes(static_cast<double>(result.state_bytes)).c_str(),
          human_bytes(static_cast<double>(result.largest_state)).c_str(), result.policy.c_str(),
          result.refeeds ? kinfolk::text(" (", result.refeeds, " times)").c_str() : "",
          human_bytes(static_cast<double>(peak_resident_bytes())).c_str());
    }
    if (asked_to_stop()) break;
  }
}

}  // namespace

void add_eval(CLI::App& app, int&) {
  auto flags = std::make_shared<EvalFlags>();
  auto* command = app.add_subcommand("eval", "Bits per byte of a text by length and by position, with an error bar");
  command->add_option("run", flags->run, "Folder of a run, or a checkpoint file")->required();
  command->add_option("--data", flags->data, "File or folder of any bytes; its validation part is scored")->required();
  command->add_flag("--whole", flags->whole, "Score all of --data, not its validation part");
  command->add_option("--lengths", flags->lengths, "Context lengths, in bytes")->capture_default_str();
  command->add_option("--tokens", flags->tokens, "Bytes scored at each length, at most")->capture_default_str();
  command->add_option("--chunk", flags->chunk, "Bytes of one call while streaming")->capture_default_str();
  command
      ->add_option("--mode", flags->mode,
                   "stream: one carried state; blocks: fresh at every trained length; auto: by the member")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "stream", "blocks"}));
  command->add_option("--checkpoint", flags->checkpoint, "last, best, or the name of a numbered one")
      ->capture_default_str();
  command->add_option("--set", flags->sets, "key=value in the recipe, for this evaluation")->allow_extra_args(false);
  command->add_flag("--json", flags->json, "The result as JSON");
  command->callback([flags] { run_eval(*flags); });
}

void add_generate(CLI::App& app, int&) {
  auto flags = std::make_shared<GenerateFlags>();
  auto& sampler = flags->options.sampler;
  auto* command = app.add_subcommand("generate",
                                     "Text from a run, streamed; options apply in the order repetition, temperature, "
                                     "top-k, top-p, min-p");
  command->add_option("run", flags->run, "Folder of a run, or a checkpoint file")->required();
  command->add_option("stdin", flags->stdin_mark, "-: the prompt comes from standard input");
  command->add_option("--prompt", flags->prompt, "Text to go on from; empty: a newline");
  command->add_option("--prompt-file", flags->file, "File to go on from, any bytes");
  command->add_option("-n,--tokens", flags->tokens, "New bytes; -1: without end")->capture_default_str();
  command->add_option("--temperature", sampler.temperature, "0: always the most likely byte")->capture_default_str();
  command->add_option("--top-k", sampler.top_k, "Keep the k most likely; 0: all")->capture_default_str();
  command->add_option("--top-p", sampler.top_p, "Keep the fewest that hold this probability")->capture_default_str();
  command->add_option("--min-p", sampler.min_p, "Keep those at least this share as likely as the first")
      ->capture_default_str();
  command->add_option("--repetition", sampler.repetition, "Log-probabilities of recent bytes times this")
      ->capture_default_str();
  command->add_option("--repetition-window", sampler.repetition_window, "Bytes that count as recent")
      ->capture_default_str();
  command->add_option("--seed", sampler.seed, "Of the draws")->capture_default_str();
  command->add_option("--samples", flags->samples, "How many, each with its own seed")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--stop", flags->options.stop, "End before this text would appear; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--memory-limit", flags->memory_limit, "Bytes of state at most, such as 64M; kept exactly");
  command
      ->add_option("--at-limit", flags->options.at_limit, "refeed: a fresh state from the newest half; stop: end there")
      ->capture_default_str()
      ->check(CLI::IsMember({"refeed", "stop"}));
  command->add_option("--checkpoint", flags->checkpoint, "last, best, or the name of a numbered one")
      ->capture_default_str();
  command->add_option("--set", flags->sets, "key=value in the recipe, for this run")->allow_extra_args(false);
  command->add_flag("--json", flags->json, "One JSON object a byte: text, token, log_probability");
  command->add_flag("--quiet", flags->quiet, "No line about speed and state at the end");
  command->callback([flags] { run_generate(*flags); });
}

}  // namespace kinfolk
