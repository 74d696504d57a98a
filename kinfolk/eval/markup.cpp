#include "kinfolk/eval/markup.h"

#include <charconv>
#include <cmath>

namespace kinfolk {
namespace {

constexpr auto kReplacement = "\xEF\xBF\xBD";
constexpr auto kNone = "\u2013";

unsigned char byte_at(std::string_view bytes, size_t i) { return static_cast<unsigned char>(bytes[i]); }

/// Length of the well-formed character at i, or 0: no overlong forms, no surrogates, nothing above U+10FFFF.
size_t character(std::string_view bytes, size_t i) {
  const unsigned char first = byte_at(bytes, i);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : (first & 0xF0) == 0xE0         ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || i + length > bytes.size()) return 0;
  for (size_t k = 1; k < length; ++k)
    if ((byte_at(bytes, i + k) & 0xC0) != 0x80) return 0;
  const unsigned char second = byte_at(bytes, i + 1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return length;
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = character(bytes, i);
    const unsigned char first = byte_at(bytes, i);
    if (length == 0) {
      out += kReplacement;
    } else if (first == 0x7F) {
      out += "\u2421";
    } else if (first < 0x20 && first != '\t' && first != '\n') {
      out += "\xE2\x90";
      out += static_cast<char>(0x80 + first);
    } else {
      out += bytes.substr(i, length);
    }
    i += length == 0 ? 1 : length;
  }
  return out;
}

std::string escape(std::string_view bytes) {
  std::string out;
  for (const char c : valid_utf8(bytes)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string fixed_text(double value, int digits) {
  if (!std::isfinite(value)) return kNone;
  if (std::abs(value) >= 1e15) return count_text(value);
  char buffer[64];  // not printf: its decimal point follows the locale
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, digits).ptr;
  std::string text(buffer, end);
  if (text.find_first_not_of("-0.") == std::string::npos && text[0] == '-') text.erase(0, 1);  // no "-0.00"
  return text;
}

std::string number_text(double value, int digits) {
  std::string text = fixed_text(value, digits);
  if (!std::isfinite(value) || text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string count_text(double value) {
  if (!std::isfinite(value)) return kNone;
  const double size = std::abs(value);
  if (size < 99999.5) return number_text(value, size >= 100 ? 0 : size >= 1 ? 2 : 4);
  const char* units[] = {"k", "M", "G", "T", "P", "E"};
  double scaled = value;
  for (const char* unit : units) {
    scaled /= 1000;
    const double now = std::abs(scaled);
    if (now < 999.5) return number_text(scaled, now >= 99.95 ? 0 : now >= 9.995 ? 1 : 2) + unit;
  }
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific, 1).ptr};
}

std::string bytes_text(double bytes) {
  if (!std::isfinite(bytes)) return kNone;
  const char* units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return number_text(bytes, unit == 0 || std::abs(bytes) >= 99.95 ? 0 : 1) + units[unit];
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return kNone;
  if (seconds < 59.5) return number_text(seconds, seconds < 9.95 ? 1 : 0) + " s";
  if (seconds >= 1e9) return count_text(seconds) + " s";
  const auto two = [](long long part) { return (part < 10 ? "0" : "") + std::to_string(part); };
  const auto whole = std::llround(seconds);
  if (whole < 3600) return std::to_string(whole / 60) + " min " + two(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + two(whole / 60 % 60) + " min";
}

}  // namespace kinfolk
