// check: the laws of every member, and the golden cases, on this machine. bench: how fast members are on it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/laws.h"
#include "kinfolk/eval/throughput.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

/// The test programs that hold the golden cases: beside the program in a build, in ../libexec/kinfolk when installed.
std::vector<fs::path> golden_programs() {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  std::vector<fs::path> out;
  for (const fs::path& folder : {here, here.parent_path() / "libexec" / "kinfolk"})
    for (const char* name : {"ops_tests", "nn_tests", "house_tests"})
      if (fs::exists(folder / name)) out.push_back(folder / name);
  return out;
}

int run_program(const fs::path& program, const std::string& filter) {
  const pid_t child = fork();
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    const std::string flag = "--gtest_filter=" + filter;
    execl(program.c_str(), program.c_str(), flag.c_str(), "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

bool check_member(const std::string& name) {
  bool good = true;
  std::cout << name << std::string(std::max<int>(1, 20 - static_cast<int>(name.size())), ' ');
  std::string excluded, broken;
  int held = 0;
  for (const auto& law : check_laws(load_recipe(name))) {
    if (!law.applies) {
      excluded += "\n    " + law.law + " does not apply: " + law.note;
    } else if (law.holds) {
      ++held;
    } else {
      broken += text("\n    BROKEN ", law.law, ": largest difference ", law.difference);
      good = false;
    }
  }
  std::cout << held << " laws hold" << broken << excluded << std::endl;
  return good;
}

void run_check(const std::string& name, int& status) {
  std::vector<std::string> members = recipe_names();
  const bool one = !name.empty() && std::find(members.begin(), members.end(), name) != members.end();
  if (one) members = {name};
  bool good = true;
  if (name.empty() || one)
    for (const auto& member : members) good = check_member(member) && good;
  if (!one) {
    const auto programs = golden_programs();
    if (programs.empty()) {
      std::cout
          << "golden cases: not checked; the test programs are neither beside this program nor in libexec/kinfolk\n";
      if (!name.empty()) refuse("[check] expected a recipe; found ", name, suggest(name, members));
    }
    if (const std::string golden = share_folder() + "/golden"; fs::is_directory(golden))
      setenv("KINFOLK_GOLDEN", golden.c_str(), 0);
    for (const auto& program : programs) {
      const std::string filter = name.empty() ? "*Golden*" : "*Golden*" + name + "*";
      const bool passed = run_program(program, filter) == 0;
      std::cout << "golden cases of " << program.filename().string() << ": "
                << (passed ? "agree" : "DISAGREE (see above)") << "\n";
      good = good && passed;
    }
  }
  if (!good) status = 1;
}

struct BenchFlags {
  std::vector<std::string> names;
  std::string size = "tiny", budget, lengths = "512,1024,2048,4096";
  bool json = false;
};

void run_bench(const BenchFlags& flags) {
  const auto names = flags.names.empty() ? recipe_names() : flags.names;
  nlohmann::json rows = nlohmann::json::array();
  if (!flags.json) {
    std::printf("%-20s %8s %12s %12s %12s %12s %12s\n", "member", "length", "train tok/s", "read tok/s", "decode tok/s",
                "state", "train peak");
  }
  for (const auto& name : names) {
    const auto [recipe, size] = resolve(name, flags.size, {}, flags.budget);
    const auto model = Model::make(recipe, size, 1);
    for (const auto& t : measure(*model, parse_counts(flags.lengths, "--lengths"))) {
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

}  // namespace

void add_check(CLI::App& app, int& status) {
  auto name = std::make_shared<std::string>();
  auto* command = app.add_subcommand("check", "The laws of every member and the golden cases, on this machine");
  command->add_option("name", *name, "Recipe (its laws), or part of a golden test's name; nothing: all");
  command->callback([name, &status] { run_check(*name, status); });
}

void add_bench(CLI::App& app, int&) {
  auto flags = std::make_shared<BenchFlags>();
  auto* command = app.add_subcommand("bench", "Speed, state and memory of members by length, random tokens, one lane");
  command->add_option("name", flags->names, "Recipes; nothing: all");
  command->add_option("--size", flags->size, "Sizes to use")->capture_default_str();
  command->add_option("--budget", flags->budget, "Parameters to solve the width for");
  command->add_option("--lengths", flags->lengths, "Lengths in tokens")->capture_default_str();
  command->add_flag("--json", flags->json, "The result as JSON");
  command->callback([flags] { run_bench(*flags); });
}

}  // namespace kinfolk
