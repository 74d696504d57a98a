#include "kinfolk/objective/objective.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/objective/causal.h"
#include "kinfolk/objective/masked.h"
#include "kinfolk/objective/prefix.h"

namespace kinfolk {
namespace {

using Make = std::shared_ptr<Objective> (*)(const Value& table);

template <class T>
std::shared_ptr<Objective> make(const Value& table) {
  return std::make_shared<T>(read_options<typename T::Options>(table, "objective", nullptr, {"kind"}));
}

const std::map<std::string, Make>& objectives() {
  static const std::map<std::string, Make> list = {
      {"causal", make<Causal>}, {"masked", make<Masked>}, {"prefix", make<Prefix>}};
  return list;
}

}  // namespace

std::shared_ptr<Objective> make_objective(const Recipe& recipe) {
  const Value* table = recipe.tree.find("objective");
  const Value none{Value::Table{}};
  if (!table) table = &none;
  const bool named = table->as<std::string>() || table->find("kind");
  const std::string kind = named ? Spec(*table).kind() : "causal";
  const auto found = objectives().find(kind);
  if (found == objectives().end()) {
    std::vector<std::string> known;
    for (const auto& [name, made] : objectives()) known.push_back(name);
    refuse(table->place.text(), "[objective.kind] expected an objective; found ", kind.empty() ? "nothing" : kind,
           suggest(kind, known));
  }
  return found->second(*table);
}

}  // namespace kinfolk
