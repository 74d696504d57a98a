#include "cli/study.h"

#include <algorithm>
#include <cmath>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/perplexity.h"

namespace kinfolk {
namespace {

using nlohmann::json;

struct Shift {
  double mean = kNothing, error = kNothing;
};

std::vector<double> numbers(const json& row, const char* key) {
  std::vector<double> out;
  for (const auto& value : row.value(key, json::array()))
    out.push_back(value.is_number() ? value.get<double>() : kNothing);
  return out;
}

/// Mean difference over texts that both have read, and its standard error.
Shift paired(std::vector<double> one, const std::vector<double>& other) {
  if (one.size() != other.size() || one.empty()) return {};
  for (size_t i = 0; i < one.size(); ++i) one[i] -= other[i];
  const auto [mean, error] = mean_and_error(one);
  return {mean, error};
}

/// All seeds' values of one row, one after the other: each seed reads the same texts.
std::vector<double> over_seeds(const std::vector<json>& found, size_t row, const char* key) {
  std::vector<double> out;
  for (const auto& one : found)
    for (const double value : numbers(one["lengths"][row], key)) out.push_back(value);
  return out;
}

}  // namespace

Recipe member_recipe(const Study& study, const Study::Entry& entry) {
  Recipe recipe = load_recipe(entry.recipe);
  recipe.name = entry.name;
  apply_settings(recipe.tree, entry.set);
  if (!study.train.none()) {
    Value train = recipe.tree.find("train") ? *recipe.tree.find("train") : Value(Value::Table{});
    for (const auto& [key, value] : *study.train.as<Value::Table>()) train.set(key, value);
    recipe.tree.set("train", train);
  }
  return recipe;
}

void check_applied(const Study& study, const Recipe& member, const Size& size) {
  const auto parameters = [&](const Recipe& recipe) {
    std::vector<std::pair<std::string, std::vector<int64_t>>> out;
    for (const auto& [name, tensor] : Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta))->weights())
      out.emplace_back(name, tensor.sizes().vec());
    return out;
  };
  const auto own = parameters(member);
  for (const auto& entry : study.after) {
    if (entry.member != member.name) continue;
    Recipe applied = at_test(member);
    apply_settings(applied.tree, entry.set);
    if (parameters(applied) != own) {
      refuse(entry.place.text(), "[after.set] expected settings that keep the parameters of ", member.name, "; found ",
             entry.name, " with others");
    }
  }
}

Examination examination(const Study& study, const std::vector<int64_t>& lengths, int64_t tokens,
                        const Study::Entry& entry, bool trained) {
  Examination out;
  out.lengths = lengths;
  out.tokens = tokens;
  out.full = false;
  out.windows = study.settings.windows;
  out.last = study.settings.last > 0 ? study.settings.last : std::max<int64_t>(1, lengths.front() / 2);
  out.mode = entry.mode;
  out.apart = trained;
  if (!trained) out.name = entry.name, out.sets = assignments(entry.set);
  return out;
}

void add_paired(Report::Member& member, const std::vector<nlohmann::json>& found, int64_t trained_length,
                const std::vector<nlohmann::json>& reference) {
  size_t home = member.by_length.size();
  for (size_t i = 0; i < member.by_length.size(); ++i)
    if (member.by_length[i].length == trained_length) home = i;
  for (size_t i = 0; i < member.by_length.size(); ++i) {
    auto& point = member.by_length[i];
    const auto last = over_seeds(found, i, "last");
    point.last = mean_and_error(last).first;
    if (home < member.by_length.size() && i != home) {
      const Shift change = paired(last, over_seeds(found, home, "last"));
      point.change = change.mean, point.change_error = change.error;
    }
    if (reference.size() == found.size()) {
      const Shift against = paired(over_seeds(found, i, "each"), over_seeds(reference, i, "each"));
      point.against = against.mean, point.against_error = against.error;
    }
  }
}

}  // namespace kinfolk
