#include "kinfolk/core/options.h"

#include <algorithm>
#include <cmath>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

std::string number_text(double v) {
  std::string s = write_toml_value(Value(v));
  if (s.size() > 2 && s.substr(s.size() - 2) == ".0") s.resize(s.size() - 2);
  return s;
}

std::string join_path(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

std::string found(const Value& value) {
  return value.as<Value::Table>() || value.as<Value::Array>() ? value.kind() : write_toml_value(value);
}

/// Of a name what it means, and where that was set: `0 (slots, set at --set let.slots)`.
[[noreturn]] void refuse_number(const std::string& path, const Value& value, const Value& meant,
                                const std::string& expected) {
  std::string name;
  if (&meant != &value) {
    const std::string place = meant.place.text();
    const size_t end = place.rfind(": ");
    name =
        text(" (", *value.as<std::string>(), end == std::string::npos ? "" : ", set at " + place.substr(0, end), ")");
  }
  refuse(value.place.text(), "[", path, "] expected ", expected, "; found ", found(meant), name);
}

}  // namespace

std::string Spec::kind() const {
  if (const auto* name = value.as<std::string>()) return *name;
  if (const auto* kind = value.find("kind"))
    if (const auto* name = kind->as<std::string>()) return *name;
  return "";
}

std::string Check::says() const {
  if (!choices.empty()) {
    std::string out = "one of";
    for (const auto& choice : choices) out += " " + choice;
    return out;
  }
  if (std::isfinite(lowest) && std::isfinite(highest)) return number_text(lowest) + " to " + number_text(highest);
  if (std::isfinite(lowest)) return "at least " + number_text(lowest);
  if (std::isfinite(highest)) return "at most " + number_text(highest);
  return "";
}

Check at_least(double lowest) { return {lowest, std::numeric_limits<double>::infinity(), {}}; }
Check between(double lowest, double highest) { return {lowest, highest, {}}; }
Check one_of(std::vector<std::string> choices) {
  Check check;
  check.choices = std::move(choices);
  return check;
}

FieldReader::FieldReader(const Value& table, std::string path, const Value* let)
    : table_(table), path_(std::move(path)), let_(let) {
  if (!table.none() && !table.as<Value::Table>() && !table.as<std::string>()) {
    refuse(table.place.text(), "[", path_, "] expected a table of options; found ", table.kind());
  }
}

const Value* FieldReader::take(const char* key) {
  known_.emplace_back(key);
  return table_.find(key);
}

void FieldReader::finish() const {
  if (const auto* table = table_.as<Value::Table>())
    for (const auto& [key, value] : *table)
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        refuse(value.place.text(), "[", join_path(path_, key), "] expected a known key; found ", key,
               suggest(key, known_));
      }
}

const Value& FieldReader::resolved(const Value& value) const {
  if (const auto* name = value.as<std::string>(); name && let_)
    if (const Value* meant = let_->find(*name)) return *meant;
  return value;
}

void FieldReader::wrong(const std::string& key, const Value& value, const std::string& expected) const {
  refuse(value.place.text(), "[", join_path(path_, key), "] expected ", expected, "; found ", found(value));
}

void FieldReader::read(const std::string& key, const Value& value, bool& field, const Check&) {
  const auto* v = value.as<bool>();
  if (!v) wrong(key, value, "true or false");
  field = *v;
}

void FieldReader::read(const std::string& key, const Value& value, int64_t& field, const Check& check) {
  const Value& meant = resolved(value);
  const auto* v = meant.as<int64_t>();
  if (!v) {
    refuse_number(join_path(path_, key), value, meant,
                  "an integer" + (check.says().empty() ? "" : ", " + check.says()));
  }
  if (*v < check.lowest || *v > check.highest) refuse_number(join_path(path_, key), value, meant, check.says());
  field = *v;
}

void FieldReader::read(const std::string& key, const Value& value, double& field, const Check& check) {
  const Value& meant = resolved(value);
  if (const auto* whole = meant.as<int64_t>()) {
    field = static_cast<double>(*whole);
  } else if (const auto* v = meant.as<double>()) {
    field = *v;
  } else {
    refuse_number(join_path(path_, key), value, meant, "a number" + (check.says().empty() ? "" : ", " + check.says()));
  }
  if (!std::isfinite(field) || field < check.lowest || field > check.highest) {
    refuse_number(join_path(path_, key), value, meant, check.says().empty() ? "a finite number" : check.says());
  }
}

void FieldReader::read(const std::string& key, const Value& value, std::string& field, const Check& check) {
  const auto* v = value.as<std::string>();
  if (!v) wrong(key, value, "text" + (check.says().empty() ? "" : ", " + check.says()));
  if (!check.choices.empty() && std::find(check.choices.begin(), check.choices.end(), *v) == check.choices.end()) {
    const std::string best = nearest(*v, check.choices);
    wrong(key, value, check.says() + (best.empty() ? "" : " (did you mean " + best + "?)"));
  }
  field = *v;
}

void FieldReader::read(const std::string& key, const Value& value, std::vector<std::string>& field,
                       const Check& check) {
  const auto* items = value.as<Value::Array>();
  if (!items) wrong(key, value, "a list of text");
  field.assign(items->size(), "");
  for (size_t i = 0; i < items->size(); ++i) read(key + "[" + std::to_string(i) + "]", (*items)[i], field[i], check);
}

void FieldReader::read(const std::string& key, const Value& value, std::vector<int64_t>& field, const Check& check) {
  const auto* items = value.as<Value::Array>();
  if (!items) wrong(key, value, "a list of integers");
  field.assign(items->size(), 0);
  for (size_t i = 0; i < items->size(); ++i) read(key + "[" + std::to_string(i) + "]", (*items)[i], field[i], check);
}

void FieldReader::read(const std::string& key, const Value& value, std::vector<double>& field, const Check& check) {
  const auto* items = value.as<Value::Array>();
  if (!items) wrong(key, value, "a list of numbers");
  field.assign(items->size(), 0);
  for (size_t i = 0; i < items->size(); ++i) read(key + "[" + std::to_string(i) + "]", (*items)[i], field[i], check);
}

void FieldReader::read(const std::string& key, const Value& value, Spec& field, const Check&) {
  const auto* word = value.as<std::string>();
  if (field.empty() && word && word->empty()) return;  // "": none, where that is the standard
  field = Spec(value);
  if (field.kind().empty()) wrong(key, value, "a component: its name, or a table with a kind");
}

void FieldReader::read(const std::string& key, const Value& value, std::vector<Spec>& field, const Check& check) {
  const auto* items = value.as<Value::Array>();
  if (!items) wrong(key, value, "a list of components");
  field.assign(items->size(), {});
  for (size_t i = 0; i < items->size(); ++i) {
    const std::string place = key + "[" + std::to_string(i) + "]";
    read(place, (*items)[i], field[i], check);
    if (field[i].empty()) wrong(place, (*items)[i], "a component: its name, or a table with a kind");
  }
}

}  // namespace kinfolk
