// docs/names.md lists every parameter name; a checkpoint can be read by it.
#include <gtest/gtest.h>

#include <set>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

/// Numbers in a name stand for any: layers.3.branches.0.in.weight -> layers.N.branches.N.in.weight.
std::string pattern_of(const std::string& name) {
  std::string out;
  std::istringstream in(name);
  for (std::string part; std::getline(in, part, '.');) {
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), ::isdigit);
    out += (out.empty() ? "" : ".") + (number ? "N" : part);
  }
  return out;
}

/// name pattern -> shape in letters, from the rows | `name` | shape | ... |
std::map<std::string, std::string> documented() {
  std::ifstream in(std::string(KINFOLK_SOURCE_DIR) + "/docs/names.md");
  std::map<std::string, std::string> out;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    const size_t end = line.find("` | ");
    const size_t next = line.find(" |", end + 4);
    out[line.substr(3, end - 3)] = line.substr(end + 4, next - end - 4);
  }
  return out;
}

/// The recipes, and settings that bring in the parameters which no recipe has by itself.
std::vector<std::shared_ptr<Model>> models() {
  std::vector<std::shared_ptr<Model>> out;
  for (const auto& name : recipe_names()) out.push_back(tiny(name));
  for (const std::string set :
       {"knn_lm head.base={ kind = \"lm\", tied = false }", "rope layers.0.branches.1.bias=true",
        "rope layers.0.branches.1.kind=separable", "rope head.tied=false", "rope head.bias=true",
        "retnet layers.0.branches.0.bias=true", "rnn layers.0.branches.0.cell=general",
        "compressive layers.0.branches.0.memory.loss=autoencoding", "rope layers.0.branches.0.bias=true",
        "image_1d input.position=learned", "linformer layers.0.branches.0.project=conv"}) {
    Recipe recipe = load_recipe(set.substr(0, set.find(' ')));
    override_recipe(recipe, set.substr(set.find(' ') + 1));
    out.push_back(Model::make(recipe, tiny_size()));
  }
  return out;
}

TEST(Names, EveryParameterIsDocumentedAndEveryRowExists) {
  auto rows = documented();
  EXPECT_GT(rows.size(), 10u);
  std::set<std::string> used;
  for (const auto& model : models())
    for (const auto& [name, weight] : model->weights()) {
      const std::string pattern = pattern_of(name);
      const auto row = rows.find(pattern);
      if (row == rows.end()) {
        ADD_FAILURE() << pattern << " " << weight.sizes() << " of " << model->recipe().name
                      << " is not in docs/names.md";
        rows[pattern] = "";
        continue;
      }
      used.insert(pattern);
      const auto axes = std::count(row->second.begin(), row->second.end(), ',') + 1;
      EXPECT_EQ(axes, weight.dim()) << pattern << " " << row->second;
    }
  for (const auto& [pattern, shape] : rows)
    EXPECT_TRUE(used.count(pattern)) << pattern << " is documented but not found";
}

}  // namespace
}  // namespace kinfolk
