// list, describe, explain: what there is.
#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/nn/length/projection.h"
#include "kinfolk/nn/memory/compression.h"
#include "kinfolk/nn/mixers/cell.h"
#include "kinfolk/nn/model.h"
#include "kinfolk/nn/score/score.h"

namespace kinfolk {
namespace {

std::string entry_text(const Recipe& recipe, const char* key) {
  const Value* value = recipe.tree.find(key);
  const auto* words = value ? value->as<std::string>() : nullptr;
  return words ? *words : "";
}

Traits traits_of(const Recipe& recipe) {
  return Model::make(recipe, load_size("tiny"), 1, at::TensorOptions().device(at::kMeta))->traits();
}

std::string state_words(const Traits& traits) {
  if (!traits.streams) return "does not stream";
  return traits.bounded ? "constant" : traits.context > 0 ? "grows, to its context" : "grows";
}

void print_markdown() {
  std::cout << "| member | what it is | state | shift-invariant | article |\n|---|---|---|---|---|\n";
  for (const auto& name : recipe_names()) {
    const Recipe recipe = load_recipe(name);
    const Traits traits = traits_of(recipe);
    std::cout << "| `" << name << "` | " << entry_text(recipe, "about") << " | " << state_words(traits) << " | "
              << (traits.relative ? "yes" : "no") << " | " << entry_text(recipe, "article") << " |\n";
  }
}

void print_forms() {
  std::printf("%-20s %-9s %-8s %-5s %-22s %s\n", "member", "parallel", "chunked", "step", "state", "why not");
  for (const auto& name : recipe_names()) {
    const Traits traits = traits_of(load_recipe(name));
    std::printf("%-20s %-9s %-8s %-5s %-22s %s\n", name.c_str(), "yes", traits.streams ? "yes" : "no",
                traits.streams ? "yes" : "no", state_words(traits).c_str(), traits.why_not.c_str());
  }
}

template <class Visit>
void each_registry(Visit&& visit) {
  visit(registry<Branch>());
  visit(registry<QkStep>());
  visit(registry<Score>());
  visit(registry<Memory>());
  visit(registry<Compression>());
  visit(registry<LengthProjection>());
  visit(registry<Cell>());
  visit(registry<Residual>());
  visit(registry<Depth>());
  visit(registry<Input>());
  visit(registry<Head>());
}

void print_components() {
  each_registry([](const auto& list) {
    std::cout << list.kind() << "\n";
    for (const auto& [name, entry] : list.entries()) std::printf("  %-18s %s\n", name.c_str(), entry.about.c_str());
  });
}

void describe(const std::string& name) {
  bool found = false;
  std::vector<std::string> known = recipe_names();
  each_registry([&](const auto& list) {
    for (const auto& [key, entry] : list.entries()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) known.push_back(key);
      if (key != name) continue;
      if (found) std::cout << "\n";
      found = true;
      std::cout << list.kind() << " " << name << ": " << entry.about << "\n";
      if (entry.fields().empty()) std::cout << "  it has no settings\n";
      for (const auto& field : entry.fields()) {
        std::printf("  %-18s %-16s %-14s %s%s%s\n", field.key.c_str(), field.type.c_str(), field.standard.c_str(),
                    field.about.c_str(), field.accepts.empty() ? "" : "; ", field.accepts.c_str());
      }
    }
  });
  const auto names = recipe_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    const Recipe recipe = load_recipe(name);
    if (found) std::cout << "\n";
    found = true;
    std::cout << "recipe " << name << ": " << entry_text(recipe, "about")
              << "\n  article: " << entry_text(recipe, "article") << "\n\n"
              << write_toml(recipe.tree);
  }
  if (!found) refuse("[describe] expected a recipe or a component; found ", name, suggest(name, known));
}

}  // namespace

void add_list(CLI::App& app, int&) {
  struct Flags {
    bool forms = false, markdown = false, components = false;
  };
  auto flags = std::make_shared<Flags>();
  auto* command = app.add_subcommand("list", "Show the members of the family, or the components they are made of");
  command->add_flag("--forms", flags->forms,
                    "How each member can compute (all at once, in chunks, byte by byte), and why not");
  command->add_flag("--components", flags->components, "The components of recipes, by the slot they fit in");
  command->add_flag("--markdown", flags->markdown, "The table of members, for a page");
  command->callback([flags] {
    if (flags->forms + flags->markdown + flags->components > 1) {
      refuse("[list] expected one of --forms, --components, --markdown; found several");
    }
    if (flags->markdown) return print_markdown();
    if (flags->forms) return print_forms();
    if (flags->components) return print_components();
    for (const auto& name : recipe_names())
      std::printf("%-20s %s\n", name.c_str(), entry_text(load_recipe(name), "about").c_str());
  });
}

void add_describe(CLI::App& app, int&) {
  auto name = std::make_shared<std::string>();
  auto* command =
      app.add_subcommand("describe", "Show a recipe, or a component with its settings and their standard values");
  command->add_option("name", *name, "Recipe or component (see kinfolk list --components)")->required()->type_name("");
  command->callback([name] { describe(*name); });
}

void add_explain(CLI::App& app, int&) {
  struct Flags {
    std::string recipe, size = "tiny", budget;
    std::vector<std::string> sets;
    bool test = false;
  };
  auto flags = std::make_shared<Flags>();
  auto* command =
      app.add_subcommand("explain", "Show what a recipe becomes: all settings, parameters, bytes of state, operators");
  command->add_option("recipe", flags->recipe, "Name of a recipe (see kinfolk list), or the path of a .toml file")
      ->required()
      ->type_name("");
  command->add_option("--size", flags->size, "How large: tiny, small, base, or the path of a .toml file like theirs")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--budget", flags->budget, "Parameters, such as 10M: the width is solved to meet it")
      ->type_name("NUMBER");
  add_set(*command, flags->sets,
          "Changes a setting of the recipe, such as layers.0.branches.0.heads=2; may be repeated");
  command->add_flag("--test", flags->test, "As it is evaluated: with the recipe's [at.test] settings");
  command->callback([flags] {
    auto [recipe, size] = resolve(flags->recipe, flags->size, flags->sets, flags->budget);
    if (flags->test) recipe = at_test(recipe);
    std::cout << Model::make(recipe, size, 1)->explain();
  });
}

}  // namespace kinfolk
