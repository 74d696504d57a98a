// kinfolk: one command for the family. Results go to stdout, everything else to stderr.
#include <csignal>
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/command.h"
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

/// The nearest known flag or command to a word that nothing took.
std::string nearest_known(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  const auto parsed = app.get_subcommands();
  const CLI::App* scope = parsed.empty() ? &app : parsed.front();
  if (word.rfind("-", 0) == 0) {
    for (const auto* option : scope->get_options())
      for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  } else {
    for (const auto* command : scope->get_subcommands([](const CLI::App*) { return true; }))
      known.push_back(command->get_name());
  }
  return kinfolk::suggest(word.substr(0, word.find('=')), known);
}

int wrong_usage(const std::string& message) {
  std::cerr << "kinfolk: " << message << "\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a full file is an error of write(), said in words
  std::signal(SIGPIPE, SIG_DFL);
  kinfolk::command_line = "kinfolk";
  for (int i = 1; i < argc; ++i) kinfolk::command_line += " " + quoted(argv[i]);
  CLI::App app(
      "kinfolk: the Transformer family for long context.\n"
      "Start with `kinfolk compare rope window deltanet --data BOOK.txt --out DIR`, or `kinfolk list`.");
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& call) {
    return app.exit(call, std::cout, std::cerr);
  } catch (const CLI::CallForVersion& call) {
    return app.exit(call, std::cout, std::cerr);
  } catch (const CLI::ExtrasError&) {
    const auto rest = app.remaining(true);
    const std::string word = rest.empty() ? "" : rest.front();
    return wrong_usage("[" + word + "] expected a known flag or command; found " + word + nearest_known(app, word));
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    if (argc > 1 && std::string(argv[1]).rfind("-", 0) != 0 && app.get_subcommands().empty()) {
      message = std::string("[") + argv[1] + "] expected a command; found " + argv[1] + nearest_known(app, argv[1]);
    }
    return wrong_usage(message + " (see kinfolk --help)");
  } catch (const kinfolk::UsageError& error) {
    return wrong_usage(error.what());
  } catch (const kinfolk::Error& error) {
    std::cerr << "kinfolk: " << error.what() << "\n";
    return 1;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    std::cerr << "kinfolk: " << what.substr(0, what.find('\n')) << "\n";
    return 1;
  }
  std::cout.flush();
  if (!std::cout) {
    std::cerr << "kinfolk: expected to write the result to standard output; found it closed or full\n";
    return 1;
  }
  return status;
}
