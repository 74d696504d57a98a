#include "kinfolk/train/settings.h"

#include <algorithm>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr const char* kBudgets[] = {"tokens", "minutes", "work"};
// What decides the order of data, the weights and the random draws.
constexpr const char* kFixed[] = {"lanes", "length", "accumulate", "seed", "documents", "carry"};

bool positive(const Value* value) {
  if (!value) return false;
  if (const auto* whole = value->as<int64_t>()) return *whole > 0;
  if (const auto* number = value->as<double>()) return *number > 0;
  return true;  // of the wrong type: the reader says so
}

void read_level(const Value* table, const std::string& path, const Value* let, TrainSettings& settings) {
  if (!table || table->none()) return;
  const char* given = nullptr;
  for (const char* key : kBudgets) {
    const Value* value = table->find(key);
    if (!positive(value)) continue;
    if (given) refuse(value->place.text(), "[", path, "] expected one budget; found ", given, " and ", key);
    given = key;
  }
  if (given) settings.tokens = 0, settings.minutes = settings.work = 0;
  FieldReader reader(*table, path, let);
  settings.fields(reader);
  reader.finish();
}

}  // namespace

TrainSettings resolve_settings(const Value& of_size, const Recipe& recipe, const Size& size, const Value& flags) {
  TrainSettings settings;
  read_level(&of_size, "train", nullptr, settings);
  read_level(recipe.tree.find("train"), "train", recipe.tree.find("let"), settings);
  read_level(&flags, "train", nullptr, settings);
  if (settings.tokens == 0 && settings.minutes == 0 && settings.work == 0) settings.tokens = 1'000'000;
  if (settings.length == 0) settings.length = size.context;
  if (settings.dropout < 0) settings.dropout = size.dropout;
  check_settings(settings);
  return settings;
}

void check_settings(const TrainSettings& s) {
  if (s.lanes % s.accumulate != 0) {
    refuse("[train.accumulate] expected a divisor of lanes = ", s.lanes, "; found ", s.accumulate);
  }
  if ((s.tokens > 0) + (s.minutes > 0) + (s.work > 0) != 1) {
    refuse("[train] expected one budget of tokens, minutes and work; found ",
           (s.tokens > 0) + (s.minutes > 0) + (s.work > 0));
  }
  if (s.length < 1) refuse("[train.length] expected at least 1; found ", s.length);
  if (s.tokens > 0 && s.tokens < s.lanes) {
    refuse("[train.tokens] expected at least a token for each of the ", s.lanes, " lanes; found ", s.tokens);
  }
}

std::vector<std::string> fixed_differences(const TrainSettings& before, const TrainSettings& now) {
  const Value a = write_options(before), b = write_options(now);
  std::vector<std::string> out;
  for (const char* key : kFixed)
    if (write_toml_value(*a.find(key)) != write_toml_value(*b.find(key))) {
      out.push_back(
          text(key, " (", write_toml_value(*a.find(key)), " before, ", write_toml_value(*b.find(key)), " now)"));
    }
  return out;
}

std::vector<std::string> changeable_settings() {
  std::vector<std::string> out;
  for (const auto& field : list_fields<TrainSettings>())
    if (std::find(std::begin(kFixed), std::end(kFixed), field.key) == std::end(kFixed)) out.push_back(field.key);
  return out;
}

}  // namespace kinfolk
