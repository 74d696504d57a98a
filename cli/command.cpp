#include "cli/command.h"

#include <unistd.h>
#include <csignal>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {

std::string command_line;

int64_t parse_count(const std::string& text, const std::string& flag) {
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  static const std::map<std::string, double> units = {{"", 1},        {"k", 1e3},        {"K", 1e3},
                                                      {"M", 1e6},     {"G", 1e9},        {"T", 1e12},
                                                      {"Ki", 1024.0}, {"Mi", 1048576.0}, {"Gi", 1073741824.0}};
  const auto found = units.find(unit);
  if (used == 0 || found == units.end() || !(value >= 0) || value * found->second > 9e18) {
    refuse("[", flag, "] expected a count such as 500, 10k, 1.5M or 64Mi; found ", text.empty() ? "nothing" : text);
  }
  return std::llround(value * found->second);
}

std::vector<int64_t> parse_counts(const std::string& text, const std::string& flag) {
  std::vector<int64_t> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) out.push_back(parse_count(part, flag));
  if (out.empty()) refuse("[", flag, "] expected a list such as 512,1024; found nothing");
  return out;
}

std::string human_count(double value) {
  static const char* units[] = {"", "k", "M", "G", "T", "P"};
  int unit = 0;
  while (std::abs(value) >= 999.5 && unit < 5) value /= 1000, ++unit;
  char out[32];
  std::snprintf(out, sizeof out, unit == 0 ? "%.0f%s" : "%.3g%s", value, units[unit]);
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

std::pair<Recipe, Size> resolve(const std::string& name, const std::string& size_name,
                                const std::vector<std::string>& sets, const std::string& budget) {
  Recipe recipe = load_recipe(name);
  Size size = load_size(size_name);
  for (const auto& set : sets) override_recipe(recipe, set);
  if (!budget.empty()) size = solve_budget(recipe, size, parse_count(budget, "--budget"));
  return {recipe, size};
}

namespace {
volatile std::sig_atomic_t interrupts = 0;
void on_interrupt(int signal) {
  if (++interrupts > 1) _exit(128 + signal);
}
}  // namespace

bool asked_to_stop() { return interrupts > 0; }
void watch_interrupts() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
}

}  // namespace kinfolk
