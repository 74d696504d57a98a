// check: the laws of every member, and the golden cases, on this machine.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/laws.h"

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

}  // namespace kinfolk
