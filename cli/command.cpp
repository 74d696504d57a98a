#include "cli/command.h"

#include <ATen/Parallel.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <CLI/CLI.hpp>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {

namespace fs = std::filesystem;

std::string command_line;

std::string machine_words() {
  utsname name{};
  uname(&name);
  std::string model = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  return text(model, ", ", at::get_num_threads(), " threads, ", name.sysname, " ", name.machine);
}

std::string now_words() {
  const std::time_t now = std::time(nullptr);
  char out[64];
  std::strftime(out, sizeof out, "%Y-%m-%d %H:%M", std::localtime(&now));
  return out;
}

namespace {

std::string shown(const std::string& text) { return text.empty() ? "nothing" : text; }

/// How far a number written as digits, point and exponent reaches from `at` on: no sign, no name, no hexadecimal.
size_t end_of_number(const std::string& text, size_t at) {
  const auto digits = [&](size_t from) { return std::min(text.find_first_not_of("0123456789", from), text.size()); };
  const size_t begin = at;
  at = digits(at);
  size_t count = at - begin;
  if (at < text.size() && text[at] == '.') {
    count += digits(at + 1) - (at + 1);
    at = digits(at + 1);
  }
  if (count == 0) return begin;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    const size_t power = at + 1 + (at + 1 < text.size() && (text[at + 1] == '+' || text[at + 1] == '-'));
    if (digits(power) > power) at = digits(power);
  }
  return at;
}

}  // namespace

int64_t parse_count(const std::string& text, const std::string& flag, int64_t least) {
  static const std::map<std::string, double> units = {{"", 1},        {"k", 1e3},        {"K", 1e3},
                                                      {"M", 1e6},     {"G", 1e9},        {"T", 1e12},
                                                      {"Ki", 1024.0}, {"Mi", 1048576.0}, {"Gi", 1073741824.0}};
  const size_t end = end_of_number(text, 0);
  const auto found = units.find(text.substr(end));
  const double value = end == 0 || found == units.end()
                           ? std::nan("")
                           : std::strtod(text.substr(0, end).c_str(), nullptr) * found->second;
  if (!(value >= 0 && value < 9e18) || std::abs(value - std::round(value)) > 1e-9 * value) {
    refuse("[", flag, "] expected a count such as 500, 10k, 1.5M or 64Mi; found ", shown(text));
  }
  const int64_t count = std::llround(value);
  if (count < least) refuse("[", flag, "] expected at least ", least, "; found ", text);
  return count;
}

std::vector<int64_t> parse_counts(const std::string& text, const std::string& flag) {
  std::vector<int64_t> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) out.push_back(parse_count(part, flag, 1));
  if (out.empty()) refuse("[", flag, "] expected a list such as 512,1024; found nothing");
  return out;
}

double parse_number(const std::string& text, const std::string& flag) {
  const size_t begin = !text.empty() && text[0] == '-';
  const size_t end = end_of_number(text, begin);
  const double value = end == begin || end != text.size() ? std::nan("") : std::strtod(text.c_str(), nullptr);
  if (!std::isfinite(value)) refuse("[", flag, "] expected a finite number; found ", shown(text));
  return value;
}

namespace {
/// The long name of "-n,--tokens".
std::string long_name(const std::string& name) {
  const size_t dashes = name.find("--");
  return dashes == std::string::npos ? name : name.substr(dashes);
}
}  // namespace

CLI::Option* add_count(CLI::App& command, const std::string& name, int64_t& value, int64_t least,
                       const std::string& about) {
  return command
      .add_option_function<std::string>(
          name,
          [&value, least, flag = long_name(name)](const std::string& typed) {
            value = parse_count(typed, flag, least);
          },
          about)
      ->type_name("NUMBER")
      ->default_str(std::to_string(value));
}

CLI::Option* add_number(CLI::App& command, const std::string& name, double& value, const std::string& about) {
  return command
      .add_option_function<std::string>(
          name, [&value, flag = long_name(name)](const std::string& typed) { value = parse_number(typed, flag); },
          about)
      ->type_name("NUMBER")
      ->default_str(text(value));
}

CLI::Option* add_choice(CLI::App& command, const std::string& name, std::string& value,
                        const std::vector<std::string>& choices, const std::string& about) {
  return command
      .add_option_function<std::string>(
          name,
          [&value, choices, flag = long_name(name)](const std::string& typed) {
            if (std::find(choices.begin(), choices.end(), typed) == choices.end()) {
              std::string known;
              for (const auto& choice : choices) known += (known.empty() ? "" : ", ") + choice;
              refuse("[", flag, "] expected one of ", known, "; found ", shown(typed));
            }
            value = typed;
          },
          about)
      ->type_name("WORD")
      ->default_str(value);
}

CLI::Option* add_set(CLI::App& command, std::vector<std::string>& sets, const std::string& about) {
  return command.add_option("--set", sets, about)->allow_extra_args(false)->type_name("KEY=VALUE");
}

std::string human_count(double value) {
  static const char* units[] = {"", "k", "M", "G", "T", "P"};
  int unit = 0;
  while (std::abs(value) >= 999.5 && unit < 5) value /= 1000, ++unit;
  char out[32];
  std::snprintf(out, sizeof out, unit == 0 ? "%.0f%s" : "%.3g%s", value, units[unit]);
  return out;
}

std::string error_text(double error) {
  if (!std::isfinite(error)) return "-";
  char out[32];
  std::snprintf(out, sizeof out, "%.4f", error);
  return out;
}

std::string human_bytes(double value) {
  static const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (std::abs(value) >= 1023.5 && unit < 4) value /= 1024, ++unit;
  char out[32];
  std::snprintf(out, sizeof out, unit == 0 ? "%.0f %s" : "%.3g %s", value, units[unit]);
  return out;
}

namespace {

/// Before anything is built: a slip of the keyboard in a size must not fill the machine's memory.
void check_bounds(const Size& size) {
  const auto bounded = [](const char* key, int64_t value, int64_t most) {
    if (value > most) refuse("[size.", key, "] expected at most ", most, "; found ", value);
  };
  bounded("depth", size.depth, 1000);
  bounded("context", size.context, int64_t{1} << 24);
  for (const auto& [key, value] :
       {std::pair{"width", size.width}, {"heads", size.heads}, {"feed", size.feed}, {"vocabulary", size.vocabulary}}) {
    bounded(key, value, int64_t{1} << 20);
  }
}

void check_fits(const Recipe& recipe, const Size& size) {
  const auto parameters =
      static_cast<double>(Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta))->parameter_count());
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (parameters * 4 > memory) {
    fail("[size] expected a model that fits into this machine's memory of ", human_bytes(memory), "; found ",
         recipe.name, " of ", human_count(parameters), " parameters, ", human_bytes(parameters * 4));
  }
}

}  // namespace

std::pair<Recipe, Size> resolve(const std::string& name, const std::string& size_name,
                                const std::vector<std::string>& sets, const std::string& budget) {
  return resolve(load_recipe(name), size_name, 0, sets, budget);
}

std::pair<Recipe, Size> resolve(Recipe recipe, const std::string& size_name, int64_t context,
                                const std::vector<std::string>& sets, const std::string& budget) {
  Size size = load_size(size_name);
  if (context > 0) size.context = context;
  for (const auto& set : sets) override_recipe(recipe, set);
  check_bounds(size);
  if (!budget.empty()) size = solve_budget(recipe, size, parse_count(budget, "--budget", 1));
  check_fits(recipe, size);
  return {recipe, size};
}

std::string checkpoint_file(const std::string& run, const std::string& checkpoint) {
  std::error_code error;
  const auto wrong = [&](const std::string& expected, const std::string& found) {
    fail("[checkpoint] ", shown(run), ": expected ", expected, "; found ", found);
  };
  if (!fs::exists(run, error)) wrong("a run folder or a checkpoint file", error ? error.message() : "nothing there");
  if (!fs::is_directory(run, error)) {
    std::ifstream in(run, std::ios::binary);
    char head[9] = {};
    if (!in.read(head, sizeof head)) {
      if (in.gcount() < static_cast<std::streamsize>(sizeof head)) {
        wrong("a run folder or a checkpoint file", text("a file of ", in.gcount(), " bytes"));
      }
    }
    if (head[8] != '{') wrong("a run folder or a checkpoint file (.safetensors)", "a file of another kind");
    return run;
  }
  const fs::path folder = fs::path(run) / "checkpoints";
  const fs::path file = folder / (checkpoint + ".safetensors");
  if (fs::is_regular_file(file, error)) return file.string();
  std::vector<std::string> known, runs;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".safetensors") known.push_back(entry.path().stem().string());
  std::sort(known.begin(), known.end());
  if (!known.empty())
    refuse("[--checkpoint] expected a checkpoint of ", run, "; found ", shown(checkpoint), suggest(checkpoint, known));
  for (const auto& member : fs::directory_iterator(run, error))  // the folder of a comparison holds RECIPE/seed-N
    for (const auto& seed : fs::directory_iterator(member.path(), error))
      if (fs::exists(seed.path() / "checkpoints", error)) runs.push_back(seed.path().string());
  std::sort(runs.begin(), runs.end());
  if (!runs.empty()) wrong("the folder of one run", "a folder of several runs, such as " + runs.front());
  wrong("a run folder with " + fs::path("checkpoints/" + checkpoint + ".safetensors").string(), "a folder without it");
  return {};
}

namespace {
volatile std::sig_atomic_t interrupts = 0;
void on_interrupt(int signal) {
  interrupts = interrupts + 1;
  if (interrupts > 1) _exit(128 + signal);
}
}  // namespace

bool asked_to_stop() { return interrupts > 0; }
void watch_interrupts() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
}

}  // namespace kinfolk
