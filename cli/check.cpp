// check: the laws of every member, and the golden cases, on this machine. bench: how fast members are on it.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
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

struct Ran {
  int status = 0;
  std::string output;
};

Ran run_program(const fs::path& program, const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe(ends) != 0) fail("[check] expected a pipe; found ", std::strerror(errno));
  const pid_t child = fork();
  if (child < 0) fail("[check] expected another process; found ", std::strerror(errno));
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    std::vector<char*> words = {const_cast<char*>(program.c_str())};
    for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    execv(program.c_str(), words.data());
    _exit(127);
  }
  close(ends[1]);
  Ran out;
  char block[4096];
  for (ssize_t got; (got = read(ends[0], block, sizeof block)) > 0 || (got < 0 && errno == EINTR);)
    if (got > 0) out.output.append(block, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  return out;
}

/// How many tests a filter chooses: gtest lists each in a line that begins with two spaces.
int64_t tests_of(const fs::path& program, const std::string& filter) {
  std::istringstream lines(run_program(program, {"--gtest_list_tests", filter}).output);
  int64_t count = 0;
  for (std::string line; std::getline(lines, line);) count += line.rfind("  ", 0) == 0;
  return count;
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

/// The golden cases whose names hold `name`, all when it is empty.
bool check_golden(const std::string& name, const std::vector<std::string>& members) {
  bool good = true;
  int64_t all = 0;
  if (const std::string golden = share_folder() + "/golden"; fs::is_directory(golden)) {
    setenv("KINFOLK_GOLDEN", golden.c_str(), 0);
  }
  const auto programs = golden_programs();
  const std::string filter = name.empty() ? "--gtest_filter=*Golden*" : "--gtest_filter=*Golden*" + name + "*";
  for (const auto& program : programs) {
    const int64_t count = tests_of(program, filter);
    all += count;
    if (count == 0) continue;
    const Ran ran = run_program(program, {filter, "--gtest_brief=1"});
    if (ran.status != 0) std::cerr << ran.output;
    std::cout << "golden cases of " << program.filename().string() << ": " << count
              << (count == 1 ? " test, " : " tests, ") << (ran.status == 0 ? "agree" : "DISAGREE (see above)")
              << std::endl;
    good = good && ran.status == 0;
  }
  if (all == 0 && !name.empty()) {
    refuse("[check] expected a recipe or part of the name of a golden test; found ", name, suggest(name, members));
  }
  if (programs.empty()) {
    std::cout << "golden cases: not checked; the test programs are neither beside this program nor in "
                 "libexec/kinfolk\n";
  }
  return good;
}

void run_check(const std::string& name, int& status) {
  std::vector<std::string> members = recipe_names();
  const bool one = !name.empty() && std::find(members.begin(), members.end(), name) != members.end();
  if (one) members = {name};
  bool good = true;
  if (name.empty() || one)
    for (const auto& member : members) good = check_member(member) && good;
  if (!one) good = check_golden(name, members) && good;
  if (!good) status = 1;
}

struct BenchFlags {
  std::vector<std::string> names;
  std::string size = "tiny", budget, lengths = "512,1024,2048,4096";
  bool json = false;
};

void run_bench(const BenchFlags& flags) {
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

}  // namespace

void add_check(CLI::App& app, int& status) {
  auto name = std::make_shared<std::string>();
  auto* command = app.add_subcommand("check", "Prove on this machine that members compute what they should");
  command->add_option("name", *name, "A recipe: its laws; or part of a golden test's name; nothing: all")
      ->type_name("");
  command->footer(
      "Laws: what every member must obey, such as that a text read in pieces gives the numbers of the text read at\n"
      "once. Golden cases: numbers from independent programs. Exit 1 when anything disagrees.");
  command->callback([name, &status] { run_check(*name, status); });
}

void add_bench(CLI::App& app, int&) {
  auto flags = std::make_shared<BenchFlags>();
  auto* command = app.add_subcommand("bench", "Speed, state and memory of members by length, on random bytes");
  command->add_option("name", flags->names, "Recipes; nothing: all")->type_name("");
  command->add_option("--size", flags->size, "How large: tiny, small, base, or the path of a .toml file like theirs")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--budget", flags->budget, "Parameters, such as 10M: the width is solved to meet it")
      ->type_name("NUMBER");
  command->add_option("--lengths", flags->lengths, "Lengths in bytes")->capture_default_str()->type_name("LIST");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->callback([flags] { run_bench(*flags); });
}

}  // namespace kinfolk
