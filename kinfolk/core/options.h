// Options: each component lists its fields once, and that list reads them, writes them, documents them.
//
//   struct Options {
//     int64_t window = 256;
//     template <class V> void fields(V&& visit) {
//       visit("window", window, "keys seen, the own position included", at_least(1));
//     }
//   };
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kinfolk/core/value.h"

namespace kinfolk {

/// A component named in a recipe: `"rope"`, or `{ kind = "rope", base = 500000.0 }`.
struct Spec {
  Value value;
  Spec() = default;
  Spec(const char* kind) : value(kind) {}
  Spec(Value v) : value(std::move(v)) {}
  bool empty() const { return value.none(); }
  std::string kind() const;  ///< "" when empty
};

/// What a field accepts besides its type; one sentence of it stands in every message and in `kinfolk describe`.
struct Check {
  double lowest = -std::numeric_limits<double>::infinity(), highest = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices;
  std::string says() const;
};
Check at_least(double lowest);
Check between(double lowest, double highest);  ///< both ends allowed
Check one_of(std::vector<std::string> choices);

/// One documented field, for `describe` and for the Python classes.
struct Field {
  std::string key, type, standard, about, accepts;
};

/// Fills fields from a table; `finish` refuses what no field asked for. Names in `let` stand for their values in number
/// fields.
class FieldReader {
 public:
  FieldReader(const Value& table, std::string path, const Value* let);
  template <class T>
  void operator()(const char* key, T& field, const char*, const Check& check = {}) {
    if (const Value* value = take(key)) read(key, *value, field, check);
  }
  void reserve(const char* key) { known_.emplace_back(key); }  ///< read by somebody else
  void finish() const;

 private:
  const Value* take(const char* key);
  void read(const std::string& key, const Value& value, bool& field, const Check&);
  void read(const std::string& key, const Value& value, int64_t& field, const Check&);
  void read(const std::string& key, const Value& value, double& field, const Check&);
  void read(const std::string& key, const Value& value, std::string& field, const Check&);
  void read(const std::string& key, const Value& value, std::vector<std::string>& field, const Check&);
  void read(const std::string& key, const Value& value, std::vector<int64_t>& field, const Check&);
  void read(const std::string& key, const Value& value, std::vector<double>& field, const Check&);
  void read(const std::string& key, const Value& value, Spec& field, const Check&);
  void read(const std::string& key, const Value& value, std::vector<Spec>& field, const Check&);
  const Value& resolved(const Value& value) const;
  [[noreturn]] void wrong(const std::string& key, const Value& value, const std::string& expected) const;
  const Value& table_;
  std::string path_;
  const Value* let_;
  std::vector<std::string> known_;
};

/// Writes the fields into a table.
struct FieldWriter {
  Value& table;
  template <class T>
  void operator()(const char* key, const T& field, const char*, const Check& = {}) {
    table.set(key, to_value(field));
  }
  static Value to_value(bool v) { return Value(v); }
  static Value to_value(int64_t v) { return Value(v); }
  static Value to_value(double v) { return Value(v); }
  static Value to_value(const std::string& v) { return Value(v); }
  static Value to_value(const Spec& v) { return v.value; }
  template <class T>
  static Value to_value(const std::vector<T>& items) {
    Value::Array out;
    for (const auto& item : items) out.push_back(to_value(item));
    return Value(std::move(out));
  }
};

/// Lists the fields with their standard values.
struct FieldLister {
  std::vector<Field>& out;
  template <class T>
  void operator()(const char* key, const T& field, const char* about, const Check& check = {}) {
    out.push_back({key, type(field), write_toml_value(FieldWriter::to_value(field)), about, check.says()});
  }
  static std::string type(bool) { return "true or false"; }
  static std::string type(int64_t) { return "integer"; }
  static std::string type(double) { return "number"; }
  static std::string type(const std::string&) { return "text"; }
  static std::string type(const Spec&) { return "component"; }
  static std::string type(const std::vector<std::string>&) { return "list of text"; }
  static std::string type(const std::vector<int64_t>&) { return "list of integers"; }
  static std::string type(const std::vector<double>&) { return "list of numbers"; }
  static std::string type(const std::vector<Spec>&) { return "list of components"; }
};

/// Reads a whole Options struct from a table; `reserved` keys are left to others, every other unknown key is refused.
template <class Options>
Options read_options(const Value& table, const std::string& path, const Value* let = nullptr,
                     const std::vector<const char*>& reserved = {}) {
  Options options;
  FieldReader reader(table, path, let);
  for (const char* key : reserved) reader.reserve(key);
  options.fields(reader);
  reader.finish();
  return options;
}

template <class Options>
Value write_options(Options options) {
  Value table{Value::Table{}};
  options.fields(FieldWriter{table});
  return table;
}

template <class Options>
std::vector<Field> list_fields() {
  Options options;
  std::vector<Field> out;
  options.fields(FieldLister{out});
  return out;
}

}  // namespace kinfolk
