#include "kinfolk/core/value.h"

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

Place place_of(const toml::node& node, const std::string& file) {
  const auto& begin = node.source().begin;
  return {file, static_cast<int64_t>(begin.line), static_cast<int64_t>(begin.column)};
}

Value convert(const toml::node& node, const std::string& file) {
  Value value;
  if (const auto* table = node.as_table()) {
    Value::Table entries;
    std::vector<std::pair<toml::source_position, size_t>> order;
    for (const auto& [key, child] : *table) {
      Value entry = convert(child, file);
      const auto& at = key.source().begin;
      if (at.line > 0) entry.place = {file, static_cast<int64_t>(at.line), static_cast<int64_t>(at.column)};
      order.emplace_back(at, entries.size());
      entries.emplace_back(std::string(key.str()), std::move(entry));
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first.line, a.first.column) < std::pair(b.first.line, b.first.column);
    });
    Value::Table sorted;
    for (const auto& [at, index] : order) sorted.push_back(std::move(entries[index]));
    value = Value(std::move(sorted));
  } else if (const auto* array = node.as_array()) {
    Value::Array items;
    for (const auto& child : *array) items.push_back(convert(child, file));
    value = Value(std::move(items));
  } else if (const auto* item = node.as_string()) {
    value = Value(item->get());
  } else if (const auto* item = node.as_integer()) {
    value = Value(item->get());
  } else if (const auto* item = node.as_floating_point()) {
    value = Value(item->get());
  } else if (const auto* item = node.as_boolean()) {
    value = Value(item->get());
  } else {
    refuse(place_of(node, file).text(),
           "expected text, a number, true or false, a list or a table; found a date or time");
  }
  value.place = place_of(node, file);
  return value;
}

bool bare_key(const std::string& key) {
  return !key.empty() &&
         std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

std::string quoted(const std::string& value) {
  std::string out = "\"";
  for (const unsigned char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c < 0x20 || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04X", c);
      out += code;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

std::string key_text(const std::string& key) { return bare_key(key) ? key : quoted(key); }

bool table_list(const Value& value) {
  const auto* items = value.as<Value::Array>();
  return items && !items->empty() && std::all_of(items->begin(), items->end(), [](const Value& item) {
           return item.as<Value::Table>() != nullptr;
         });
}

void write_table(std::string& out, const Value::Table& table, const std::string& prefix) {
  for (const auto& [key, value] : table)
    if (!value.as<Value::Table>() && !table_list(value) && !value.none()) {
      out += key_text(key) + " = " + write_toml_value(value) + "\n";
    }
  for (const auto& [key, value] : table) {
    const std::string name = prefix.empty() ? key_text(key) : prefix + "." + key_text(key);
    if (const auto* child = value.as<Value::Table>()) {
      out += "\n[" + name + "]\n";
      write_table(out, *child, name);
    } else if (table_list(value)) {
      for (const auto& item : *value.as<Value::Array>()) {
        out += "\n[[" + name + "]]\n";
        write_table(out, *item.as<Value::Table>(), name);
      }
    }
  }
}

size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before2(b.size() + 1), before(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) before[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, before[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before2[j - 2] + 1);
    }
    before2.swap(before);
    before.swap(row);
  }
  return before[b.size()];
}

}  // namespace

std::string Place::text() const {
  if (file.empty()) return "";
  return line > 0 ? kinfolk::text(file, ":", line, ":", column, ": ") : file + ": ";
}

std::string Value::kind() const {
  static const char* names[] = {"nothing",  "true or false", "an integer", "a floating-point number",
                                "a string", "a list",        "a table"};
  return names[data.index()];
}

const Value* Value::find(const std::string& key) const {
  if (const auto* table = as<Table>())
    for (const auto& [name, value] : *table)
      if (name == key) return &value;
  return nullptr;
}

Value* Value::find(const std::string& key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

Value& Value::set(const std::string& key, Value value) {
  if (none()) data = Table{};
  if (auto* old = find(key)) return *old = std::move(value);
  auto& table = std::get<Table>(data);
  table.emplace_back(key, std::move(value));
  return table.back().second;
}

void Value::erase(const std::string& key) {
  if (auto* table = as<Table>()) std::erase_if(*table, [&](const auto& entry) { return entry.first == key; });
}

Value parse_toml(const std::string& text, const std::string& file) {
  try {
    const toml::table table = toml::parse(text, file);
    Value value = convert(table, file);
    value.place = {file, 0, 0};
    return value;
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    refuse(Place{file, static_cast<int64_t>(at.line), static_cast<int64_t>(at.column)}.text(), "expected TOML; ",
           error.description());
  }
}

Value read_toml(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse(path, ": expected a TOML file; found a folder");
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, ": expected a readable TOML file; found none");
  std::ostringstream text;
  text << in.rdbuf();
  return parse_toml(text.str(), path);
}

std::string write_toml_value(const Value& value) {
  struct Writer {
    std::string operator()(std::monostate) const { return "\"\""; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return std::to_string(i); }
    std::string operator()(double d) const {
      if (std::isnan(d)) return "nan";
      if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
      // The shortest digits that read back to the same number, without an exponent where that is readable.
      const double size = std::abs(d);
      const auto format =
          size == 0 || (size >= 1e-5 && size < 1e15) ? std::chars_format::fixed : std::chars_format::scientific;
      char out[48];
      const auto end = std::to_chars(out, out + sizeof out, d, format).ptr;
      std::string s(out, end);
      if (s.find_first_of(".e") == std::string::npos) s += ".0";
      return s;
    }
    std::string operator()(const std::string& s) const { return quoted(s); }
    std::string operator()(const Value::Array& items) const {
      std::string out = "[";
      for (const auto& item : items) out += (out.size() > 1 ? ", " : "") + write_toml_value(item);
      return out + "]";
    }
    std::string operator()(const Value::Table& table) const {
      std::string out = "{";
      for (const auto& [key, item] : table)
        out += (out.size() > 1 ? ", " : " ") + key_text(key) + " = " + write_toml_value(item);
      return out + " }";
    }
  };
  return std::visit(Writer{}, value.data);
}

std::string write_toml(const Value& table) {
  std::string out;
  if (const auto* entries = table.as<Value::Table>()) write_table(out, *entries, "");
  return out;
}

Value parse_value(const std::string& text, const std::string& origin) {
  try {
    const Value table = parse_toml("value = " + text, origin);
    if (table.as<Value::Table>()->size() == 1) {
      Value value = *table.find("value");
      value.place = {origin, 0, 0};
      return value;
    }
  } catch (const Error&) {
    // no TOML: text
  }
  Value value(text);
  value.place = {origin, 0, 0};
  return value;
}

namespace {

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.empty(); })) {
    refuse("[", path, "] expected a path such as layers.0.branches.0.window");
  }
  return parts;
}

std::vector<std::string> keys_of(const Value& value) {
  std::vector<std::string> keys;
  if (const auto* table = value.as<Value::Table>())
    for (const auto& [key, child] : *table) keys.push_back(key);
  return keys;
}

Value* step_into(Value& node, const std::string& part, const std::string& path) {
  if (auto* items = node.as<Value::Array>()) {
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), ::isdigit) && part.size() < 10;
    if (!number || std::stoull(part) >= items->size()) {
      refuse("[", path, "] expected an index below ", items->size(), "; found ", part);
    }
    return &(*items)[std::stoull(part)];
  }
  return node.find(part);
}

}  // namespace

Value* find_path(Value& root, const std::string& path) {
  Value* node = &root;
  for (const auto& part : parts_of(path)) {
    Value* next = step_into(*node, part, path);
    if (!next) refuse("[", path, "] expected an existing setting; found no ", part, suggest(part, keys_of(*node)));
    node = next;
  }
  return node;
}

void set_path(Value& root, const std::string& path, const Value& value) {
  const std::string last = parts_of(path).back();
  const size_t dot = path.rfind('.');
  Value* owner = dot == std::string::npos ? &root : find_path(root, path.substr(0, dot));
  if (owner->as<Value::Array>()) {
    *step_into(*owner, last, path) = value;
  } else if (owner->as<Value::Table>() || owner->none()) {
    owner->set(last, value);
  } else if (const auto* kind = owner->as<std::string>()) {
    Value table;  // a component written by its name alone gets options
    table.place = owner->place;
    table.set("kind", Value(*kind));
    table.set(last, value);
    *owner = table;
  } else {
    refuse("[", path, "] expected a table to set ", last, " in; found ", owner->kind());
  }
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : known) {
    const size_t d = distance(word, candidate);
    if (d < least) least = d, best = candidate;
  }
  return best;
}

std::string suggest(const std::string& word, const std::vector<std::string>& known) {
  const std::string best = nearest(word, known);
  std::string out = best.empty() ? "" : " (did you mean " + best + "?)";
  out += "; known:";
  for (const auto& candidate : known) out += " " + candidate;
  return out;
}

}  // namespace kinfolk
