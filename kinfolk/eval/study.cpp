#include "kinfolk/eval/study.h"

#include <algorithm>
#include <filesystem>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/recipe.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void wrong(const Value& at, const std::string& key, const std::string& expected,
                        const std::string& found) {
  refuse(at.place.text(), "[", key, "] expected ", expected, "; found ", found);
}

/// The table at `key`, or none.
Value table_at(const Value& tree, const char* key) {
  const Value* value = tree.find(key);
  if (!value) return {};
  if (!value->as<Value::Table>()) wrong(*value, key, "a table", value->kind());
  return *value;
}

std::vector<Study::Entry> entries_at(const Value& tree, const std::string& key) {
  std::vector<Study::Entry> out;
  const Value* list = tree.find(key);
  if (!list) return out;
  const auto* items = list->as<Value::Array>();
  if (!items) wrong(*list, key, text("a list of tables, [[", key, "]]"), list->kind());
  for (size_t i = 0; i < items->size(); ++i) {
    const Value& item = (*items)[i];
    const std::string path = text(key, "[", i, "]");
    if (!item.as<Value::Table>()) wrong(item, path, "a table", item.kind());
    auto entry = read_options<Study::Entry>(item, path, nullptr, {"set"});
    entry.place = item.place;
    entry.set = Value(Value::Table{});
    if (const Value* set = item.find("set")) {
      if (!set->as<Value::Table>()) wrong(*set, path + ".set", "a table, setting = value", set->kind());
      entry.set = *set;
    }
    out.push_back(std::move(entry));
  }
  return out;
}

/// Names are folders and columns.
void check_name(const std::string& name, const Place& place, const std::string& path) {
  const bool plain =
      !name.empty() && name[0] != '.' &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.+") == std::string::npos;
  if (plain) return;
  refuse(place.text(), "[", path, ".name] expected letters, digits and _ - . +; found ",
         name.empty() ? "nothing" : name);
}

std::vector<Study::Task> tasks_at(const Value& tree) {
  std::vector<Study::Task> out;
  const Value* list = tree.find("tasks");
  if (!list) return out;
  const auto* items = list->as<Value::Array>();
  if (!items) wrong(*list, "tasks", "a list of tables, [[tasks]]", list->kind());
  for (size_t i = 0; i < items->size(); ++i) {
    const Value& item = (*items)[i];
    const std::string path = text("tasks[", i, "]");
    if (!item.as<Value::Table>()) wrong(item, path, "a table", item.kind());
    auto task = read_options<Study::Task>(item, path);
    task.place = item.place;
    check_name(task.name, item.place, path);
    if (!task.data.starts_with("recall:")) {
      wrong(item, path + ".data", "a task of recall, recall:KIND", task.data.empty() ? "nothing" : task.data);
    }
    if (task.chart.empty()) wrong(item, path + ".chart", "the name of a chart", "nothing");
    const auto named = [&](const std::string& name) {
      return std::any_of(out.begin(), out.end(), [&](const auto& other) { return other.name == name; });
    };
    if (named(task.name)) wrong(item, path + ".name", "each name once", task.name + " twice");
    const auto learned = std::find_if(out.begin(), out.end(), [&](const auto& other) { return other.name == task.of; });
    if (!task.of.empty() && (learned == out.end() || !learned->of.empty())) {
      wrong(item, path + ".of", "the name of a task before it that is learned", task.of);
    }
    if (!task.of.empty() && (!task.state.empty() || !task.from.empty() || task.tokens > 0 || task.lanes > 0)) {
      wrong(item, path, "neither state nor from nor tokens nor lanes beside `of`: nothing is trained", "one of them");
    }
    const auto before =
        std::find_if(out.begin(), out.end(), [&](const auto& other) { return other.name == task.from; });
    if (!task.from.empty() && (before == out.end() || !before->of.empty())) {
      wrong(item, path + ".from", "the name of a task before it that is learned", task.from);
    }
    out.push_back(std::move(task));
  }
  return out;
}

/// A study of scaling has nothing that is about training: what would have no effect is refused.
void read_scaling(Study& study, const Value& tree) {
  const Value* table = tree.find("scaling");
  for (const auto& [list, key] : {std::pair{&study.members, "members"}, {&study.after, "after"}})
    for (size_t i = 0; i < list->size() && !table; ++i) {
      if ((*list)[i].until == 0) continue;
      refuse((*list)[i].place.text(), "[", key, "[", i, "].until] expected it with [scaling]; found it without");
    }
  if (!table) return;
  for (const char* key : {"study", "train", "after", "tasks"}) {
    if (const Value* other = tree.find(key)) wrong(*other, key, "none beside [scaling]: nothing is trained", "it");
  }
  study.scaling = read_options<ScalingSettings>(table_at(tree, "scaling"), "scaling");
  auto& lengths = study.scaling->lengths;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  for (size_t i = 0; i < study.members.size(); ++i) {
    const auto& entry = study.members[i];
    if (entry.group.empty() && entry.mode == "auto" && !entry.unlimited) continue;
    refuse(entry.place.text(), "[members[", i,
           "]] expected name, recipe, set and until with [scaling]; found group, mode or unlimited");
  }
}

/// Names and fits of a study of scaling.
void check_scaling(const Study& study, const Value& table) {
  std::vector<std::string> names;
  for (const auto& entry : study.members) names.push_back(entry.name);
  for (const auto& [key, name] :
       {std::pair{"reference", study.scaling->reference}, {"without", study.scaling->without}}) {
    if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) continue;
    wrong(*table.find(key), text("scaling.", key), "the name of a member", name + suggest(name, names));
  }
}

void check_entries(Study& study) {
  std::vector<std::string> names;
  const auto check = [&](const Study::Entry& entry, const std::string& path) {
    check_name(entry.name, entry.place, path);
    if (std::find(names.begin(), names.end(), entry.name) != names.end()) {
      refuse(entry.place.text(), "[", path, ".name] expected each name once; found ", entry.name, " twice");
    }
    names.push_back(entry.name);
  };
  for (size_t i = 0; i < study.members.size(); ++i) {
    auto& entry = study.members[i];
    const std::string path = text("members[", i, "]");
    if (entry.recipe.empty()) refuse(entry.place.text(), "[", path, ".recipe] expected a recipe; found none");
    if (!entry.member.empty()) {
      refuse(entry.place.text(), "[", path, ".member] expected it in [[after]] alone; found ", entry.member);
    }
    if (entry.name.empty()) entry.name = fs::path(entry.recipe).stem().string();
    if (entry.group.empty()) entry.group = "trained in";
    check(entry, path);
  }
  const std::vector<std::string> trained = names;
  for (size_t i = 0; i < study.after.size(); ++i) {
    auto& entry = study.after[i];
    const std::string path = text("after[", i, "]");
    if (!entry.recipe.empty()) {
      refuse(entry.place.text(), "[", path, ".recipe] expected it in [[members]] alone; found ", entry.recipe);
    }
    if (std::find(trained.begin(), trained.end(), entry.member) == trained.end()) {
      refuse(entry.place.text(), "[", path, ".member] expected the name of a trained member; found ",
             entry.member.empty() ? "none" : entry.member, suggest(entry.member, trained));
    }
    if (entry.set.as<Value::Table>()->empty() && entry.mode == "auto") {
      refuse(entry.place.text(), "[", path, ".set] expected a setting that changes; found none");
    }
    if (entry.group.empty()) entry.group = "applied afterwards";
    check(entry, path);
  }
  const std::string& reference = study.settings.reference;
  if (!reference.empty() && std::find(names.begin(), names.end(), reference) == names.end()) {
    refuse(study.file, ": [study.reference] expected the name of an entry; found ", reference,
           suggest(reference, names));
  }
}

}  // namespace

std::string study_file(const std::string& name) {
  const bool path = name.find('/') != std::string::npos || name.ends_with(".toml");
  std::error_code error;
  if (!path) {
    const fs::path file = fs::path(share_folder()) / "recipes/studies" / (name + ".toml");
    return fs::is_regular_file(file, error) ? file.string() : "";
  }
  if (!fs::is_regular_file(name, error)) return "";  // what is wrong with it is said by who reads recipes
  const Value tree = read_toml(name);
  return tree.find("study") || tree.find("scaling") ? name : "";
}

Study read_study(const std::string& path) {
  const Value tree = read_toml(path);
  static const std::vector<std::string> known = {"about", "study", "train", "members", "after", "tasks", "scaling"};
  for (const auto& [key, value] : *tree.as<Value::Table>())
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      wrong(value, key, "a known key", key + suggest(key, known));
    }
  Study study;
  study.name = fs::path(path).stem().string();
  study.file = path;
  if (const Value* about = tree.find("about")) {
    if (!about->as<std::string>()) wrong(*about, "about", "text", about->kind());
    study.about = *about->as<std::string>();
  }
  const Value settings = table_at(tree, "study");
  study.settings = read_options<StudySettings>(settings, "study");
  std::sort(study.settings.lengths.begin(), study.settings.lengths.end());
  study.train = table_at(tree, "train");
  study.members = entries_at(tree, "members");
  study.after = entries_at(tree, "after");
  if (study.members.empty()) refuse(path, ": [members] expected at least one [[members]]; found none");
  read_scaling(study, tree);
  check_entries(study);
  if (study.scaling) {
    check_scaling(study, *tree.find("scaling"));
    check_scaling_lengths(study);
  }
  study.tasks = tasks_at(tree);
  if (!study.tasks.empty() && !study.after.empty()) {
    refuse(path, ": [after] expected none beside [[tasks]]; found ", study.after[0].name);
  }
  return study;
}

void check_scaling_lengths(const Study& study) {
  const auto& lengths = study.scaling->lengths;
  for (size_t i = 0; i < study.members.size(); ++i) {
    const auto& entry = study.members[i];
    const auto fitted = std::count_if(lengths.begin(), lengths.end(), [&](int64_t length) {
      return length >= study.scaling->fit_from && (entry.until == 0 || length <= entry.until);
    });
    if (fitted >= 2) continue;
    refuse(entry.place.text(), "[scaling.fit_from] expected at least two lengths of each member from ",
           study.scaling->fit_from, " on, for its exponent; found ", fitted, " of ", entry.name);
  }
}

void apply_settings(Value& tree, const Value& set) {
  for (const auto& [key, value] : *set.as<Value::Table>()) {
    try {
      set_path(tree, key, value);
    } catch (const UsageError& error) {
      refuse(value.place.text(), error.what());
    }
  }
}

std::vector<std::string> assignments(const Value& set) {
  std::vector<std::string> out;
  for (const auto& [key, value] : *set.as<Value::Table>()) out.push_back(key + "=" + write_toml_value(value));
  return out;
}

}  // namespace kinfolk
