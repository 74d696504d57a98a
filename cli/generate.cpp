// generate: text from a run, streamed; or images.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/generate_images.h"
#include "cli/store.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/eval/generate.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

constexpr size_t kLongestPrompt = size_t{1} << 30;

struct GenerateFlags {
  std::string run, prompt, file, tokens = "256", checkpoint = "last", stdin_mark, store, memory_limit;
  std::string session, load_session, save_session;
  std::vector<std::string> sets;
  GenerateOptions options;
  int64_t samples = 1, seed = 1;
  bool json = false, quiet = false, prompt_given = false;
  ImageFlags images;
  std::vector<const CLI::Option*> of_text;  ///< options that images leave without effect
};

std::string read_all(std::istream& in, const std::string& name) {
  std::string out, block(size_t{1} << 16, '\0');
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())), in.gcount() > 0) {
    out.append(block.data(), static_cast<size_t>(in.gcount()));
    if (out.size() > kLongestPrompt) {
      refuse("[generate.prompt] expected at most ", kLongestPrompt, " bytes; found more in ", name);
    }
  }
  return out;
}

std::string prompt_of(const GenerateFlags& flags) {
  const bool from_stdin = flags.stdin_mark == "-";
  if (!flags.stdin_mark.empty() && !from_stdin) {
    refuse("[generate] expected RUN, or RUN - for a prompt from standard input; found ", flags.stdin_mark);
  }
  if (flags.prompt_given + (!flags.file.empty()) + from_stdin > 1) {
    refuse("[generate] expected one of --prompt, --prompt-file and -; found several");
  }
  if (from_stdin) return read_all(std::cin, "standard input");
  if (flags.file.empty()) return flags.prompt;
  struct stat about = {};
  std::ifstream in;
  errno = 0;
  if (stat(flags.file.c_str(), &about) == 0 && S_ISDIR(about.st_mode)) errno = EISDIR;
  if (errno == 0) in.open(flags.file, std::ios::binary);
  if (errno != 0 || !in) {
    refuse("[--prompt-file] expected a file that can be read; found ", flags.file, ": ", std::strerror(errno));
  }
  return read_all(in, flags.file);
}

void print_json(const Piece& piece) {
  nlohmann::ordered_json line;
  if (piece.token >= 0) line["token"] = piece.token, line["log_probability"] = piece.log_probability;
  line["text"] = std::string(piece.text);
  std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

/// Session files that cannot be meant together.
void check_sessions(const GenerateFlags& flags) {
  if (!flags.session.empty() && (!flags.load_session.empty() || !flags.save_session.empty())) {
    refuse("[--session] expected it alone, since it is read and written; found it with ",
           flags.load_session.empty() ? "--save-session" : "--load-session");
  }
  if (flags.samples > 1 && !(flags.session.empty() && flags.save_session.empty())) {
    refuse("[--samples] expected 1 where a session is saved; found ", flags.samples);
  }
}

/// The session file to begin from; "": none.
std::string from_session(const GenerateFlags& flags) {
  if (!flags.load_session.empty()) return flags.load_session;
  return !flags.session.empty() && access(flags.session.c_str(), F_OK) == 0 ? flags.session : "";
}

int64_t model_bytes(const Model& model) {
  int64_t sum = 0;
  for (const auto& [name, tensor] : model.weights()) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

/// What a text took beside weights and state: resident memory above that of the beginning, less what the state grew.
class Scratch {
 public:
  explicit Scratch(const Session& session) : peak_(peak_resident_bytes()), state_(session.bytes()) {
    reset_peak();
    resident_ = resident_bytes();
  }
  int64_t bytes(int64_t largest_state) const {
    return std::max<int64_t>(0, peak_resident_bytes() - resident_ - std::max<int64_t>(0, largest_state - state_));
  }
  int64_t peak() const { return std::max(peak_, peak_resident_bytes()); }  ///< of the program

 private:
  int64_t peak_, state_, resident_ = 0;
};

void print_summary(const Generated& result, int64_t weights, const Scratch& scratch) {
  const auto rate = [](int64_t count, double seconds) {
    return human_count(static_cast<double>(count) / std::max(1e-9, seconds)) + "/s";
  };
  std::string line = kinfolk::text("ended: ", result.ended, "; prompt of ", result.prompt_tokens, " bytes");
  if (result.prompt_read < result.prompt_tokens) {
    const bool to_the_end = result.prompt_skipped + result.prompt_read == result.prompt_tokens;
    line += kinfolk::text(", of which ",
                          to_the_end                   ? "the newest "
                          : result.prompt_skipped == 0 ? "the first "
                                                       : "",
                          result.prompt_read, " were read");
  }
  line += kinfolk::text(
      " at ", rate(result.prompt_read, result.prompt_seconds), ", ", result.tokens, " new at ",
      rate(result.tokens, result.decode_seconds), "; state ", human_bytes(static_cast<double>(result.state_bytes)),
      ", at most ", human_bytes(static_cast<double>(result.largest_state)), " (",
      result.most_bytes < 0 ? std::string("no bound")
                            : text("never above ", human_bytes(static_cast<double>(result.most_bytes))),
      "); ", result.policy);
  if (result.refeeds) line += kinfolk::text(" (", result.refeeds, result.refeeds == 1 ? " time)" : " times)");
  std::cerr << line << "; weights " << human_bytes(static_cast<double>(weights)) << ", scratch "
            << human_bytes(static_cast<double>(scratch.bytes(result.largest_state))) << ", peak memory of the program "
            << human_bytes(static_cast<double>(scratch.peak())) << "\n";
}

void run_images(const GenerateFlags& flags, int& status) {
  for (const auto* option : flags.of_text)
    if (option->count() > 0) {
      const std::string name = option->get_lnames().empty() ? option->get_name(true) : "--" + option->get_lnames()[0];
      refuse("[", name, "] expected none with --images, where it has no effect; found it");
    }
  ImageFlags images = flags.images;
  images.json = flags.json, images.quiet = flags.quiet;
  check_images(images);
  check_generate(flags.options);
  auto loaded = load_run(checkpoint_file(flags.run, flags.checkpoint), true, flags.sets);
  if (!loaded.record.images.any()) {
    refuse("[--images] expected a run that was trained on images; found one of text: ", loaded.record.data);
  }
  refuse_store_of_images(loaded, flags.store);
  watch_interrupts();
  SamplerOptions sampler = flags.options.sampler;
  sampler.seed = static_cast<uint64_t>(flags.seed);
  draw_picture(loaded, images, sampler, status);
}

void run_generate(const GenerateFlags& flags, int& status) {
  if (flags.images.count > 0) return run_images(flags, status);
  if (!flags.images.out.empty())
    refuse("[--out] expected it with --images; found it with text, which goes to standard output");
  if (flags.images.complete_given) refuse("[--complete] expected it with --images; found it with text");
  GenerateOptions options = flags.options;
  options.tokens = flags.tokens == "-1" ? -1 : parse_count(flags.tokens, "--tokens");
  if (!flags.memory_limit.empty()) options.session.memory_limit = parse_count(flags.memory_limit, "--memory-limit", 1);
  if (options.tokens < 0 && flags.samples > 1) refuse("[--samples] expected 1 with --tokens -1; found ", flags.samples);
  check_generate(options);
  check_sessions(flags);
  const std::string from = from_session(flags), to = flags.session.empty() ? flags.save_session : flags.session;
  if (!to.empty()) check_writable(to);
  const std::string prompt = prompt_of(flags);
  auto loaded = load_with_store(checkpoint_file(flags.run, flags.checkpoint), flags.sets, flags.store);
  if (loaded.record.images.any()) {
    refuse("[generate] expected --images NUMBER, since the run was trained on images; found none");
  }
  prepare_store(loaded, flags.store, flags.sets);
  watch_interrupts();
  std::optional<Session> begin;
  if (from.empty()) {
    begin.emplace(*loaded.model, options.session);
  } else {
    begin = Session::load(*loaded.model, from, options.session);
    if (begin->lanes() != 1) {
      refuse("[--load-session] expected a session of one lane; found ", begin->lanes(), " in ", from);
    }
    if (!flags.quiet) std::cerr << "session of " << begin->position() << " bytes from " << from << "\n";
  }
  options.read_last = !to.empty();
  for (int64_t sample = 0; sample < flags.samples && !asked_to_stop(); ++sample) {
    options.sampler.seed = static_cast<uint64_t>(flags.seed + sample);
    if (flags.samples > 1) std::cerr << "sample " << sample + 1 << ", seed " << options.sampler.seed << "\n";
    Progress progress("reading the prompt", 1.0);
    options.reading = [&](double share) {
      progress.update(share);
      if (share >= 1) progress.finish();
      return !asked_to_stop();
    };
    Session session = sample + 1 < flags.samples ? *begin : std::move(*begin);
    const Scratch scratch(session);
    const Generated result = generate(session, prompt, options, [&](const Piece& piece) {
      if (flags.json) {
        print_json(piece);
      } else {
        std::cout << piece.text;
      }
      std::cout.flush();
      return static_cast<bool>(std::cout) && !asked_to_stop();
    });
    if (!flags.json) std::cout << "\n";
    if (!flags.quiet && std::cout) print_summary(result, model_bytes(*loaded.model), scratch);
    if (!to.empty()) {
      session.save(to);
      if (!flags.quiet) std::cerr << "session of " << session.position() << " bytes saved to " << to << "\n";
    }
  }
  if (asked_to_stop()) status = 130;
}

}  // namespace

void add_generate(CLI::App& app, int& status) {
  auto flags = std::make_shared<GenerateFlags>();
  auto& sampler = flags->options.sampler;
  auto* command =
      app.add_subcommand("generate", "Write text with a trained run, byte by byte as it is made; or images");
  command->add_option("run", flags->run, "Folder of a run (what train made), or a checkpoint file")
      ->required()
      ->type_name("");
  auto* mark = command->add_option("stdin", flags->stdin_mark, "-: the prompt comes from standard input");
  mark->type_name("");
  auto* prompt =
      command->add_option("--prompt", flags->prompt, "Text to go on from, any bytes; none or empty: a newline")
          ->type_name("TEXT");
  command->add_option("--prompt-file", flags->file, "File to go on from, any bytes")->type_name("PATH");
  command->add_option("-n,--tokens", flags->tokens, "New bytes; -1: without end")
      ->capture_default_str()
      ->type_name("NUMBER");
  add_number(*command, "--temperature", sampler.temperature,
             "Below 1 the likely bytes become likelier, above 1 the others; 0: always the likeliest");
  add_count(*command, "--top-k", sampler.top_k, 0, "Draw among the k likeliest bytes only; 0: all");
  add_number(*command, "--top-p", sampler.top_p, "Draw among the fewest bytes that hold this probability together");
  add_number(*command, "--min-p", sampler.min_p, "Draw among bytes at least this share as likely as the likeliest");
  add_number(*command, "--repetition", sampler.repetition,
             "Above 1: bytes that stand in the recent text become less likely");
  add_count(*command, "--repetition-window", sampler.repetition_window, 0, "Bytes that count as recent");
  add_count(*command, "--seed", flags->seed, 0, "Of the draws: the same seed writes the same text");
  add_count(*command, "--samples", flags->samples, 1, "Texts to write, each with the next seed");
  command->add_option("--stop", flags->options.stop, "End before this text would appear; may be repeated")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  command
      ->add_option("--memory-limit", flags->memory_limit,
                   "Bytes that the state (what the member keeps of the past) may take, such as 64Mi; kept exactly")
      ->type_name("NUMBER");
  add_choice(
      *command, "--at-limit", flags->options.session.at_limit, {"drop", "refeed", "stop"},
      "Where the memory limit is met by a member that keeps every key. drop: the newest keys that fit are kept, "
      "older ones dropped; refeed: go on with a fresh state made from the newest half; stop: end. Where positions "
      "end, drop does as refeed");
  command
      ->add_option("--session", flags->session,
                   "File that holds what was read before: the text goes on from it if it exists, and it is written at "
                   "the end, so that the next call goes on from there without reading it all again")
      ->type_name("FILE");
  command->add_option("--load-session", flags->load_session, "The same, only read: it must exist, and stays as it is")
      ->type_name("FILE");
  command->add_option("--save-session", flags->save_session, "The same, only written at the end")->type_name("FILE");
  command->add_option("--checkpoint", flags->checkpoint, "last, best, or the name of a numbered one")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--store", flags->store, kStoreHelp)->type_name("PATH");
  add_set(*command, flags->sets, "Changes a setting of the recipe for this text; may be repeated");
  command->add_flag("--json", flags->json, "Print a JSON object a byte: token, log_probability, text");
  add_count(*command, "--images", flags->images.count, 1,
            "Runs trained on images: draw so many, image i with the seed + i; to standard output as blocks of grey")
      ->default_str("");
  command->add_option("--out", flags->images.out, "With --images: a file for the picture, .svg or .pgm")
      ->type_name("FILE");
  auto* complete = command
                       ->add_option("--complete", flags->images.complete,
                                    "With --images: keep the upper halves of held-out images of this data, and show "
                                    "each beside its completion")
                       ->type_name("PATH");
  command->add_flag("--quiet", flags->quiet, "No line about speed and state at the end");
  command->footer(
      "The options of the draw apply in this order: repetition, temperature, top-k, top-p, min-p.\n"
      "Examples: kinfolk generate runs/rope --prompt \"It was \" -n 500\n"
      "          kinfolk generate runs/rope --prompt-file BOOK.txt -n 200 --session book.session\n"
      "          kinfolk generate runs/rope --prompt \"Then \" -n 200 --session book.session\n"
      "          kinfolk generate runs/rope -n -1 --memory-limit 4Mi\n"
      "          kinfolk generate runs/image_2d --images 16 --out samples.svg");
  flags->of_text.push_back(mark);
  for (const char* name : {"--prompt", "--prompt-file", "--tokens", "--samples", "--stop", "--memory-limit",
                           "--at-limit", "--session", "--load-session", "--save-session"}) {
    flags->of_text.push_back(command->get_option(name));
  }
  command->callback([flags, prompt, complete, &status] {
    flags->prompt_given = prompt->count() > 0;
    flags->images.complete_given = complete->count() > 0;
    run_generate(*flags, status);
  });
}

}  // namespace kinfolk
