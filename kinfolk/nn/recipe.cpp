#include "kinfolk/nn/recipe.h"

#include <dlfcn.h>
#include <unistd.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kKeys = {"about", "article", "extends",   "let",    "input", "layers",
                                        "depth", "head",    "objective", "losses", "train", "at"};

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || (name.size() > 5 && name.substr(name.size() - 5) == ".toml");
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The file that a name or path means.
std::string file_of(const std::string& name, const std::string& kind, const std::string& folder, const Place& place) {
  if (is_path(name)) return name;
  const fs::path file = fs::path(share_folder()) / folder / (name + ".toml");
  if (!fs::is_regular_file(file)) {
    refuse(place.text(), "[", kind, "] expected a name or the path of a .toml file; found ",
           name.empty() ? "nothing" : name, suggest(name, names_in(file.parent_path())));
  }
  return file.string();
}

void expect(const Value& tree, const char* key, bool ok, const char* expected) {
  const Value* value = tree.find(key);
  if (value && !ok) refuse(value->place.text(), "[", key, "] expected ", expected, "; found ", value->kind());
}

/// Keys and their types; what stands inside is checked by the components.
void check_keys(const Value& tree) {
  for (const auto& [key, value] : *tree.as<Value::Table>())
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      refuse(value.place.text(), "[", key, "] expected a known key; found ", key, suggest(key, kKeys));
    }
  const auto text_or_none = [&](const char* key) {
    const Value* value = tree.find(key);
    expect(tree, key, value && value->as<std::string>(), "text");
  };
  for (const char* key : {"about", "article", "extends"}) text_or_none(key);
  for (const char* key : {"let", "losses", "train", "at"}) {
    const Value* value = tree.find(key);
    expect(tree, key, value && value->as<Value::Table>(), "a table");
  }
  const Value* layers = tree.find("layers");
  expect(tree, "layers", layers && layers->as<Value::Array>(), "a list of tables, [[layers]]");
  if (const Value* at = tree.find("at"))
    for (const auto& [key, value] : *at->as<Value::Table>())
      if (key != "test" || !value.as<Value::Table>()) {
        refuse(value.place.text(), "[at.", key, "] expected [at.test], a table of settings; found ", key, ", ",
               value.kind());
      }
}

/// Tables are merged key by key; everything else in `over` replaces what stood there.
void merge(Value& base, const Value& over) {
  for (const auto& [key, value] : *over.as<Value::Table>()) {
    Value* old = base.find(key);
    if (old && old->as<Value::Table>() && value.as<Value::Table>()) {
      merge(*old, value);
    } else {
      base.set(key, value);
    }
  }
}

/// [at.test] written with or without quotes: a table that is no component is a deeper path.
void apply(Value& tree, const std::string& prefix, const Value& settings) {
  for (const auto& [key, value] : *settings.as<Value::Table>()) {
    const std::string path = prefix.empty() ? key : prefix + "." + key;
    if (value.as<Value::Table>() && !value.find("kind")) {
      apply(tree, path, value);
      continue;
    }
    try {
      set_path(tree, path, value);
    } catch (const UsageError& error) {
      refuse(value.place.text(), error.what());
    }
  }
}

/// A name of [let] that the recipe does not have would be set and never read.
void check_name(const Recipe& recipe, const std::string& key) {
  if (key.rfind("let.", 0) != 0) return;
  const std::string name = key.substr(4);
  std::vector<std::string> known;
  if (const Value* let = recipe.tree.find("let"))
    for (const auto& [other, value] : *let->as<Value::Table>()) known.push_back(other);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    refuse("[--set] expected a name in [let] of ", recipe.name, "; found ", name, suggest(name, known));
  }
}

}  // namespace

std::string share_folder() {
  if (const char* given = std::getenv("KINFOLK_SHARE"); given && *given) return given;
  std::error_code error;
  Dl_info library{};  // a program elsewhere that links the installed library finds what lies beside the library
  dladdr(reinterpret_cast<const void*>(&share_folder), &library);
  for (const fs::path& file :
       {fs::read_symlink("/proc/self/exe", error), fs::path(library.dli_fname ? library.dli_fname : "")}) {
    const fs::path folder = file.parent_path().parent_path();
    for (const fs::path& prefix : {folder, folder.parent_path()}) {  // lib/ or lib/<machine>/
      if (fs::is_directory(prefix / "share/kinfolk/recipes", error)) return (prefix / "share/kinfolk").string();
    }
  }
  return KINFOLK_SOURCE_DIR;
}

std::vector<std::string> recipe_names() { return names_in(fs::path(share_folder()) / "recipes"); }

Recipe load_recipe(const std::string& name_or_path) {
  const std::string file = file_of(name_or_path, "recipe", "recipes", {});
  Recipe recipe{fs::path(file).stem().string(), read_toml(file)};
  check_keys(recipe.tree);
  if (const Value* extends = recipe.tree.find("extends")) {
    const std::string& base_name = *extends->as<std::string>();
    std::string base_file = file_of(base_name, "extends", "recipes", extends->place);
    if (is_path(base_name)) base_file = (fs::path(file).parent_path() / base_name).string();
    Value base = read_toml(base_file);
    check_keys(base);
    if (const Value* further = base.find("extends")) {
      refuse(further->place.text(), "[extends] expected a recipe that extends none, since ", file,
             " extends it; found ", write_toml_value(*further));
    }
    merge(base, recipe.tree);
    base.erase("extends");
    base.place = recipe.tree.place;
    recipe.tree = std::move(base);
  }
  if (!recipe.tree.find("layers")) {
    refuse(recipe.tree.place.text(), "[layers] expected at least one [[layers]]; found none");
  }
  return recipe;
}

Size load_size(const std::string& name, Value* train) {
  const std::string file = file_of(name, "size", "recipes/sizes", {});
  Value tree = read_toml(file);
  const Value* table = tree.find("train");
  if (table && !table->as<Value::Table>()) {
    refuse(table->place.text(), "[train] expected a table; found ", table->kind());
  }
  if (train) *train = table ? *table : Value(Value::Table{});
  return read_options<Size>(tree, "size", nullptr, {"train", "about"});
}

void override_recipe(Recipe& recipe, const std::string& assignment) {
  const size_t equal = assignment.find('=');
  if (equal == std::string::npos || equal == 0) {
    refuse("[--set] expected key=value, such as layers.0.branches.0.window=64; found ", assignment);
  }
  const std::string key = assignment.substr(0, equal);
  // What a recipe leaves to the standard depth can be said all the same: depth.kind=reversible goes with any.
  if ((key == "depth" || key.rfind("depth.", 0) == 0) && !recipe.tree.find("depth")) {
    Value standard{Value::Table{}};
    standard.set("kind", "once");
    recipe.tree.set("depth", standard);
  }
  check_name(recipe, key);
  set_path(recipe.tree, key, parse_value(assignment.substr(equal + 1), "--set " + key));
  check_keys(recipe.tree);
}

Recipe at_test(const Recipe& recipe) {
  Recipe out = recipe;
  const Value* at = recipe.tree.find("at");
  out.tree.erase("at");
  if (at)
    if (const Value* test = at->find("test")) apply(out.tree, "", *test);
  check_keys(out.tree);
  return out;
}

}  // namespace kinfolk
