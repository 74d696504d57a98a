// kinfolk: one command for the family. Results go to stdout, everything else to stderr.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "kinfolk/core/block_cache.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/value.h"

namespace {

std::string quoted(const std::string& word) {
  if (!word.empty() &&
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%") ==
          std::string::npos) {
    return word;
  }
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

/// The command that was parsed last, of commands below commands the lowest; the application itself when there was none.
const CLI::App* parsed_command(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? &app : parsed_command(*parsed.front());
}

/// "bench attend "; "" for the application itself.
std::string words_of(const CLI::App* command) {
  const CLI::App* above = command->get_parent();
  return above ? words_of(above) + command->get_name() + " " : "";
}

/// What to say of a word that nothing took.
std::string unknown_word(const CLI::App& app, const std::string& word) {
  const CLI::App* scope = parsed_command(app);
  std::vector<std::string> known;
  const bool flag = word.rfind("-", 0) == 0;
  if (flag) {
    for (const auto* option : scope->get_options())
      for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  } else {
    for (const auto* command : scope->get_subcommands([](const CLI::App*) { return true; }))
      known.push_back(command->get_name());
  }
  if (known.empty()) return kinfolk::text("[", scope->get_name(), "] expected no further word; found ", word);
  return kinfolk::text("[", word, "] expected a known ", flag ? "flag" : "command", "; found ", word,
                       kinfolk::suggest(word.substr(0, word.find('=')), known));
}

/// The parser's message in this program's words.
std::string in_our_words(const CLI::App& app, const CLI::ParseError& error) {
  const auto rest = app.remaining(true);
  if (!rest.empty()) return unknown_word(app, rest.front());
  const std::string what = error.what(), command = parsed_command(app)->get_name();
  const std::string name = what.substr(0, what.find_first_of(": "));
  if (dynamic_cast<const CLI::RequiredError*>(&error)) {
    if (parsed_command(app) == &app) return "[kinfolk] expected a command; found none";
    return kinfolk::text("[", command, "] expected ", name.rfind("-", 0) == 0 ? name + " and its value" : name,
                         "; found none");
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    return what.find("At Most") != std::string::npos ? kinfolk::text("[", name, "] expected once; found several")
                                                     : kinfolk::text("[", name, "] expected a value; found none");
  }
  return what;
}

int wrong_usage(const std::string& message) {
  std::cerr << "kinfolk: " << message << "\n";
  return 2;
}

int failed(const std::string& message) {
  std::cerr << "kinfolk: " << message << "\n";
  return 1;
}

/// A closed standard stream must not lend its number to a file that is opened later.
void hold_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(descriptor, F_GETFD) < 0) open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/// What libtorch says, in one line.
std::string foreign_error(const std::string& what) {
  const size_t asked = what.find("you tried to allocate ");
  if (asked == std::string::npos) return what.substr(0, what.find('\n'));
  const std::string bytes = what.substr(asked + 22, what.find(' ', asked + 22) - asked - 22);
  return kinfolk::text("[memory] expected room for a tensor of ", bytes,
                       " bytes; found none (smaller sizes, fewer lanes or a shorter length may help)");
}

/// Threads of libgomp spin while they wait, and that costs several times the work itself as soon as another program
/// wants the processor. The policy is read when the library is loaded, so commands that compute start themselves once
/// more with threads that sleep; who sets OMP_WAIT_POLICY or GOMP_SPINCOUNT has decided otherwise.
void wait_asleep(int argc, char** argv) {
  static const std::vector<std::string> computing = {"train", "compare", "eval",     "generate",
                                                     "bench", "check",   "datastore"};
  if (argc < 2 || std::find(computing.begin(), computing.end(), argv[1]) == computing.end()) return;
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  execv("/proc/self/exe", argv);  // where that fails the program goes on as it is
}

/// Large blocks of tensors stay for the next tensor of their size (core/block_cache). Who sets malloc's own variables
/// has decided otherwise.
void keep_freed_blocks() {
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"})
    if (std::getenv(name)) return;
  kinfolk::keep_large_blocks();
}

}  // namespace

int main(int argc, char** argv) {
  wait_asleep(argc, argv);
  keep_freed_blocks();
  hold_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a full file is an error of write(), said in words
  std::signal(SIGPIPE, SIG_DFL);
  kinfolk::command_line = "kinfolk";
  for (int i = 1; i < argc; ++i) kinfolk::command_line += " " + quoted(argv[i]);
  CLI::App app(
      "kinfolk: the Transformer family for long context. Trains members of the family side by side on your own text,\n"
      "byte by byte, and shows which of them reads it best beyond the length it was trained on.\n"
      "Start with `kinfolk compare rope window deltanet --data BOOK.txt --out DIR`, or `kinfolk list`.");
  app.footer(
      "`kinfolk COMMAND --help` says more. Results go to standard output, all else to standard error; exit 0: "
      "fine,\n1: the run failed, 2: wrong usage, 130: stopped by Ctrl-C.");
  app.name("kinfolk");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("kinfolk ") + KINFOLK_VERSION);
  app.get_formatter()->column_width(34);
  int status = 0;
  kinfolk::add_compare(app, status);
  kinfolk::add_train(app, status);
  kinfolk::add_eval(app, status);
  kinfolk::add_generate(app, status);
  kinfolk::add_list(app, status);
  kinfolk::add_describe(app, status);
  kinfolk::add_explain(app, status);
  kinfolk::add_draw(app, status);
  kinfolk::add_check(app, status);
  kinfolk::add_bench(app, status);
  kinfolk::add_datastore(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& call) {
    return app.exit(call, std::cout, std::cerr);
  } catch (const CLI::CallForVersion& call) {
    return app.exit(call, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    const CLI::App* command = parsed_command(app);
    return wrong_usage(kinfolk::text(in_our_words(app, error), " (see kinfolk ", words_of(command), "--help)"));
  } catch (const kinfolk::UsageError& error) {
    return wrong_usage(error.what());
  } catch (const kinfolk::Error& error) {
    return failed(error.what());
  } catch (const std::bad_alloc&) {
    return failed("[memory] expected more memory; found none left");
  } catch (const std::exception& error) {
    return failed(foreign_error(error.what()));
  }
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout)) {
    return failed("[output] expected to write the result to standard output; found it closed or full");
  }
  return status;
}
