// Recipes: what makes a member, as a tree of settings; sizes: how large it is.
#pragma once
#include <string>
#include <vector>

#include "kinfolk/core/value.h"
#include "kinfolk/nn/context.h"

namespace kinfolk {

/// A resolved recipe. Top-level keys: about, article, let, input, layers, depth, head, objective, losses, train, at.
///   [[layers]] repeat = 1 | "all" | "all but last" | "every N" | "layer N of M" | N;  [[layers.branches]] kind, norm,
///   norm_kind, residual, then the branch's options.
struct Recipe {
  std::string name;
  Value tree;
};

/// Where recipes, sizes and golden cases lie: $KINFOLK_SHARE, else share/kinfolk beside the program's prefix, else the
/// source tree.
std::string share_folder();
/// By name ("rope") or path ("mine.toml"). `extends = "name"` is resolved (one level). Throws UsageError with the
/// nearest known name.
Recipe load_recipe(const std::string& name_or_path);
std::vector<std::string> recipe_names();
/// sizes/NAME.toml: the sizes, and in `train` (when given) its table of training settings.
Size load_size(const std::string& name, Value* train = nullptr);
/// `--set key=value`: in the recipe's tree (layers.0.branches.0.window=64, let.window=64).
void override_recipe(Recipe& recipe, const std::string& assignment);
/// The recipe with its [at.test] overrides applied: the member as it is evaluated.
Recipe at_test(const Recipe& recipe);

}  // namespace kinfolk
