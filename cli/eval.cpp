// eval: bits per byte of held-out text by length and by position.
#include <cmath>
#include <cstring>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/recall.h"
#include "cli/store.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/images.h"
#include "kinfolk/eval/perplexity.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/data/images.h"
#include "kinfolk/train/data/recall.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

struct EvalFlags {
  std::string run, data, lengths, mode = "auto", checkpoint = "last", store, memory_limit, at_limit = "drop";
  std::string load_session, save_session;
  int64_t tokens = 0, chunk = 512, windows = 0, last = 0;
  std::vector<std::string> sets;
  bool json = false, whole = false;
  std::vector<const CLI::Option*> of_text, of_task;  ///< options that images, and tasks, leave without effect
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
                              {"state_held_bytes", s.held_bytes},
                              {"policy", s.policy},
                              {"peak_growth_bytes", s.peak_growth}});
    if (!s.last_bits.empty()) {
      const auto [mean, error] = mean_and_error(s.last_bits);
      out["lengths"].back()["last_bits_per_byte"] = mean;
      out["lengths"].back()["last_error"] = error;
    }
  }
  for (const auto& p : scores.positions) {
    out["positions"].push_back({{"from", p.from}, {"to", p.to}, {"bits_per_byte", p.bits}, {"error", p.error}});
  }
  std::cout << out.dump(1) << "\n";
}

void print_table(const Scores& scores) {
  const bool last = !scores.lengths.front().last_bits.empty();
  const auto ends = [&](const char* bits, const std::string& error) {
    return last ? text(std::string(10 - std::min<size_t>(10, std::strlen(bits)), ' '), bits,
                       std::string(10 - std::min<size_t>(10, error.size()), ' '), error)
                : "";
  };
  std::printf("%9s %9s %9s%s %10s %12s %12s  %s\n", "length", "bits/byte", "+-", ends("last", "+-").c_str(), "bytes",
              "bytes/s", "state", "mode");
  for (const auto& s : scores.lengths) {
    const auto [mean, error] = last ? mean_and_error(s.last_bits) : std::pair(0.0, 0.0);
    char bits[32];
    std::snprintf(bits, sizeof bits, "%.4f", mean);
    std::printf("%9lld %9.4f %9s%s %10lld %12.0f %12s  %s\n", static_cast<long long>(s.length), s.bits,
                error_text(s.error).c_str(), ends(bits, error_text(error)).c_str(), static_cast<long long>(s.tokens),
                s.tokens_per_second, human_bytes(static_cast<double>(s.state_bytes)).c_str(), s.mode.c_str());
  }
  std::printf("\n%9s %9s %9s %9s   of the longest\n", "from", "to", "bits/byte", "+-");
  for (const auto& p : scores.positions) {
    std::printf("%9lld %9lld %9.4f %9s\n", static_cast<long long>(p.from), static_cast<long long>(p.to), p.bits,
                error_text(p.error).c_str());
  }
}

void print_images(const ImageScores& scores, const std::vector<ImageBaseline>& baselines, bool json) {
  if (json) {
    nlohmann::json out = {{"bits_per_pixel", scores.bits},
                          {"error", scores.error},
                          {"images", scores.images},
                          {"pixels", scores.pixels},
                          {"pixels_per_second", scores.pixels_per_second}};
    for (const auto& b : baselines) out["baselines"].push_back({{"name", b.name}, {"bits_per_pixel", b.bits}});
    for (const auto& row : scores.rows) out["rows"].push_back({{"bits_per_pixel", row.bits}, {"error", row.error}});
    std::cout << out.dump(1) << "\n";
    return;
  }
  std::printf("%10s %9s %9s %9s %12s\n", "bits/pixel", "+-", "images", "pixels", "pixels/s");
  std::printf("%10.4f %9s %9lld %9lld %12.0f\n\n%9s %10s %9s\n", scores.bits, error_text(scores.error).c_str(),
              static_cast<long long>(scores.images), static_cast<long long>(scores.pixels), scores.pixels_per_second,
              "row", "bits/pixel", "+-");
  for (size_t row = 0; row < scores.rows.size(); ++row) {
    std::printf("%9zu %10.4f %9s\n", row, scores.rows[row].bits, error_text(scores.rows[row].error).c_str());
  }
  std::printf("\ncounts of the training images, for scale:\n");
  for (const auto& b : baselines) std::printf("%10.4f  %s\n", b.bits, b.name.c_str());
}

[[noreturn]] void fail_without_numbers() {
  fail("[eval] expected scores that are numbers; found NaN: weights, or a session, hold some");
}

/// Images are scored whole, so that lengths and ways of reading have no meaning.
void eval_images(const EvalFlags& flags) {
  for (const auto* option : flags.of_text)
    if (option->count() > 0) {
      refuse("[--", option->get_lnames().at(0), "] expected none for images, which are read whole; found it");
    }
  auto loaded = load_run(checkpoint_file(flags.run, flags.checkpoint), true, flags.sets);
  Corpus corpus = read_corpus(flags.data);
  check_form(loaded.record.images, corpus, flags.data);
  refuse_store_of_images(loaded, flags.store);
  const ImageForm& form = corpus.images;
  const auto baselines = image_baselines(corpus.train.bytes, corpus.valid.bytes, form.rows, form.columns, form.levels);
  Pixels pixels = std::move(corpus.valid.bytes);
  if (flags.whole) pixels.insert(pixels.begin(), corpus.train.bytes.begin(), corpus.train.bytes.end());
  Progress progress("scoring", 1.0);
  const ImageGrid grid = grid_of(*loaded.model, corpus.images.rows, corpus.images.columns);
  const ImageScores scores = score_images(*loaded.model, pixels, grid, flags.tokens > 0 ? flags.tokens : 65536, 32,
                                          [&](double share) { progress.update(share); });
  progress.finish();
  print_images(scores, baselines, flags.json);
}

void run_eval(const EvalFlags& flags) {
  if (holds_images(flags.data)) return eval_images(flags);
  if (holds_recall(flags.data)) {
    for (const auto* option : flags.of_task)
      if (option->count() > 0) refuse("[--", option->get_lnames().at(0), "] expected none for a task; found it");
    return eval_recall(checkpoint_file(flags.run, flags.checkpoint), flags.data, flags.tokens, flags.sets, flags.json);
  }
  ScoreOptions options;
  options.windows = flags.windows, options.last = flags.last;
  options.session.at_limit = flags.at_limit;
  if (!flags.memory_limit.empty()) {
    options.session.memory_limit = parse_count(flags.memory_limit, "--memory-limit", 1);
  }
  if (flags.windows > 0 && flags.tokens > 0) refuse("[eval] expected one of --windows and --tokens; found both");
  if (!flags.lengths.empty()) options.lengths = parse_counts(flags.lengths, "--lengths");
  const std::string file = checkpoint_file(flags.run, flags.checkpoint);
  const Bytes text = flags.whole ? read_text(flags.data).bytes : read_corpus(flags.data).valid.bytes;
  auto loaded = load_with_store(file, flags.sets, flags.store);
  check_form(loaded.record.images, Corpus{}, flags.data);
  Model& model = *loaded.model;
  const auto size = static_cast<int64_t>(text.size());
  if (flags.lengths.empty()) options.lengths = usual_lengths(model.size().context, size);
  check_scorable(model, text, options.lengths, flags.mode);
  prepare_store(loaded, flags.store, flags.sets, text);
  const bool searches = model.head().wants_store() && flags.store != "none";
  options.tokens = flags.tokens > 0 ? flags.tokens : searches ? 8192 : 65536;
  options.chunk = flags.chunk;
  options.mode = flags.mode;
  std::optional<Session> from;
  if (!flags.load_session.empty()) {
    if (flags.mode == "blocks" || model.traits().context > 0) {
      refuse("[--load-session] expected a member that reads on from what came before; found blocks");
    }
    from = Session::load(model, flags.load_session, options.session);
    if (from->lanes() != 1) refuse("[--load-session] expected a session of one lane; found ", from->lanes());
    options.from = &*from, options.lanes = 1;
  }
  const Traits traits = model.traits();
  for (const auto& [flag, given] :
       {std::pair("--memory-limit", flags.memory_limit), {"--save-session", flags.save_session}}) {
    if (!given.empty() && !traits.streams) {
      refuse("[", flag, "] expected a member that carries a state; found ", loaded.record.recipe.name, ": ",
             traits.why_not);
    }
  }
  if (!flags.save_session.empty()) {
    const int64_t block = model.size().context;
    if ((flags.mode == "blocks" || traits.context > 0) && options.lengths[0] > block) {
      refuse("[--save-session] expected a text of at most ", block,
             " bytes, since a fresh state reads each block; found ", options.lengths[0]);
    }
    if (flags.windows != 1 || options.lengths.size() != 1) {
      refuse("[--save-session] expected one text to be read: --windows 1 and one of --lengths; found several");
    }
    check_writable(flags.save_session);
    options.end = [&](Session& session) {
      if (session.scores().isnan().any().item<bool>()) fail_without_numbers();
      session.save(flags.save_session);
    };
  }
  Progress progress("scoring", 1.0);
  options.progress = [&](double share) { progress.update(share); };
  const Scores scores = score(model, text, options);
  progress.finish();
  for (const auto& s : scores.lengths)
    if (std::isnan(s.bits)) fail_without_numbers();
  std::cerr << "state: " << scores.lengths.back().policy;
  if (const int64_t held = scores.lengths.back().held_bytes; held > 0) {
    std::cerr << "; its memory took at most " << human_bytes(static_cast<double>(held)) << " a window";
  }
  std::cerr << "\n";
  if (flags.json) {
    print_json(scores);
  } else {
    print_table(scores);
  }
}

}  // namespace

void add_eval(CLI::App& app, int&) {
  auto flags = std::make_shared<EvalFlags>();
  auto* command = app.add_subcommand(
      "eval", "Measure a trained run: bits per byte of a text, by length and by position, or of images");
  command->add_option("run", flags->run, "Folder of a run (what train made), or a checkpoint file")
      ->required()
      ->type_name("");
  command
      ->add_option(
          "--data", flags->data,
          "File or folder, any bytes, images or a task as for train; the part of it that train holds out is scored")
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
  add_count(*command, "--windows", flags->windows, 1,
            "So many windows at each length instead, which end at the same places for all lengths: the same bytes are "
            "read with more before them")
      ->default_str("");
  add_count(*command, "--last", flags->last, 1, "Score these last bytes of each window by themselves, too")
      ->default_str("");
  add_count(*command, "--chunk", flags->chunk, 1, "Bytes of one call while streaming: changes speed and memory alone");
  add_choice(*command, "--mode", flags->mode, {"auto", "stream", "blocks"},
             "stream: one state is carried over the whole length; blocks: a fresh state every trained length; auto: "
             "stream where the member can");
  command
      ->add_option("--memory-limit", flags->memory_limit,
                   "Bytes that the state of each window may take, such as 64Ki; kept exactly")
      ->type_name("NUMBER");
  add_choice(*command, "--at-limit", flags->at_limit, {"drop", "refeed"},
             "Where the memory limit is met by a member that keeps every key. drop: the newest keys that fit are kept; "
             "refeed: go on with a fresh state made from the newest half");
  command
      ->add_option(
          "--load-session", flags->load_session,
          "Windows go on from what this session has read (see generate), not from nothing; not where every block "
          "begins from nothing")
      ->type_name("FILE");
  command
      ->add_option(
          "--save-session", flags->save_session,
          "With --windows 1 and one length: what has read them, to go on from with generate or eval (where every "
          "block begins from nothing: of one block at most)")
      ->type_name("FILE");
  command->add_option("--checkpoint", flags->checkpoint, "last, best, or the name of a numbered one")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--store", flags->store, kStoreHelp)->type_name("PATH");
  add_set(*command, flags->sets, "Changes a setting of the recipe for this evaluation; may be repeated");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer(
      "Windows of each length are spread evenly over the text; each starts from nothing. The error bar (+-) is the\n"
      "standard error over windows. Examples: kinfolk eval runs/rope --data BOOK.txt --lengths 256,1024,4096\n"
      "  kinfolk eval runs/rope --data BOOK.txt --whole --lengths 100k --windows 1 --save-session book.session\n"
      "  kinfolk eval runs/rope --data BOOK.txt --lengths 64k --memory-limit 256Ki");
  for (const char* name : {"--lengths", "--windows", "--last", "--chunk", "--mode", "--memory-limit", "--at-limit",
                           "--load-session", "--save-session"})
    flags->of_text.push_back(command->get_option(name));
  for (const char* name : {"--lengths", "--chunk", "--mode", "--whole", "--windows", "--last", "--store",
                           "--memory-limit", "--at-limit", "--load-session", "--save-session"}) {
    flags->of_task.push_back(command->get_option(name));
  }
  command->callback([flags] { run_eval(*flags); });
}

}  // namespace kinfolk
