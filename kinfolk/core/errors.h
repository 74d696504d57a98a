// What goes wrong and how it is said: `[component.key] expected ...; found ...`.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace kinfolk {

/// The run failed (exit status 1): bad data, a full disk, a foreign checkpoint, sizes that cannot work.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The caller asked for something that does not exist or cannot be (exit status 2): keys, values, flags, recipes.
struct UsageError : Error {
  using Error::Error;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(text(parts...));
}

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw UsageError(text(parts...));
}

}  // namespace kinfolk
