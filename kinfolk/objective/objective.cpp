#include "kinfolk/objective/objective.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/objective/causal.h"

namespace kinfolk {

std::shared_ptr<Objective> make_objective(const Recipe& recipe) {
  const Value* table = recipe.tree.find("objective");
  const Value none{Value::Table{}};
  if (!table) table = &none;
  const bool named = table->as<std::string>() || table->find("kind");
  const std::string kind = named ? Spec(*table).kind() : "causal";
  if (kind != "causal") {
    refuse(table->place.text(), "[objective.kind] expected an objective; found ", kind.empty() ? "nothing" : kind,
           suggest(kind, {"causal"}));
  }
  return std::make_shared<Causal>(read_options<Causal::Options>(*table, "objective", nullptr, {"kind"}));
}

}  // namespace kinfolk
