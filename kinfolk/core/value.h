// A tree of settings with the place where each was written: what recipes, sizes, studies and `--set` are read into.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kinfolk {

/// Where a setting was written; line 0: it was not in a file.
struct Place {
  std::string file;
  int64_t line = 0, column = 0;
  std::string text() const;  ///< "file:line:column: ", or "" without a file
};

struct Value {
  using Array = std::vector<Value>;
  using Table = std::vector<std::pair<std::string, Value>>;  ///< in the order of the file
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Table> data;
  Place place;

  Value() = default;
  template <class T>
  Value(T value) : data(std::move(value)) {}
  Value(const char* value) : data(std::string(value)) {}
  Value(int value) : data(int64_t{value}) {}

  bool none() const { return data.index() == 0; }
  template <class T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
  template <class T>
  T* as() {
    return std::get_if<T>(&data);
  }
  std::string kind() const;                         ///< "a string", "an integer", ... for messages
  const Value* find(const std::string& key) const;  ///< of a table; null: no such key
  Value* find(const std::string& key);
  Value& set(const std::string& key, Value value);  ///< of a table (made one when empty); returns the stored value
  void erase(const std::string& key);
};

/// Reads TOML. Throws UsageError "file:line:column: ..." where it is malformed.
Value parse_toml(const std::string& text, const std::string& file);
Value read_toml(const std::string& path);
/// Writes TOML that parse_toml reads back to an equal tree.
std::string write_toml(const Value& table);
/// One value as TOML writes it, on one line: `"text"`, `[1, 2]`, `{ kind = "rope" }`.
std::string write_toml_value(const Value& value);

/// `layers.0.branches.1.window` addresses into tables and arrays. Throws UsageError that names the first part that does
/// not exist.
Value* find_path(Value& root, const std::string& path);
/// Applies `path = value`: the value is read as TOML, or as a bare string when that fails. The last part of the path
/// may be new.
void set_path(Value& root, const std::string& path, const Value& value);
Value parse_value(const std::string& text, const std::string& origin);

/// The known word nearest to a misspelt one, or "" when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& known);
/// " (did you mean window?); known: heads window", for messages.
std::string suggest(const std::string& word, const std::vector<std::string>& known);

}  // namespace kinfolk
