// Components by name. One list a kind, filled by one call (nn/kin.cpp): no static initialisers, no import side effects.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/options.h"

namespace kinfolk {

struct Context;

/// Makes components of one kind (`Base`) from their name and options.
/// T needs `struct Options` with `fields`, and a constructor T(const Options&, const Context&).
template <class Base>
class Registry {
 public:
  struct Entry {
    std::string about;  ///< one line, with the article
    std::function<std::vector<Field>()> fields;
    std::function<std::shared_ptr<Base>(const Value& options, const Context&, const std::string& path,
                                        const std::vector<const char*>& reserved)>
        make;
  };

  explicit Registry(std::string kind) : kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }

  template <class T>
  void add(const std::string& name, const std::string& about) {
    if (!entries_.emplace(name, Entry{about, list_fields<typename T::Options>, make<T>}).second) {
      fail("[", kind_, ".", name, "] expected one registration; found two");
    }
  }

  /// Throws UsageError with the place in the recipe for an unknown name or key.
  std::shared_ptr<Base> create(const Spec& spec, const Context& context, const std::string& path,
                               std::vector<const char*> reserved = {}) const {
    const Entry& entry = find(spec.kind(), spec.value.place, path);
    reserved.push_back("kind");
    return entry.make(spec.value, context, path, reserved);
  }

  const Entry& find(const std::string& name, const Place& place = {}, const std::string& path = "") const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      std::vector<std::string> known;
      for (const auto& [key, entry] : entries_) known.push_back(key);
      refuse(place.text(), "[", path.empty() ? kind_ : path, "] expected a ", kind_, "; found ",
             name.empty() ? "nothing" : name, suggest(name, known));
    }
    return found->second;
  }
  bool has(const std::string& name) const { return entries_.count(name) > 0; }
  const std::map<std::string, Entry>& entries() const { return entries_; }

 private:
  template <class T>
  static std::shared_ptr<Base> make(const Value& options, const Context& context, const std::string& path,
                                    const std::vector<const char*>& reserved);
  std::string kind_;
  std::map<std::string, Entry> entries_;
};

/// The list of a kind: `registry<Branch>()`. Defined for each kind in nn/kin.cpp, which fills it at the first call.
template <class Base>
Registry<Base>& registry();

}  // namespace kinfolk
