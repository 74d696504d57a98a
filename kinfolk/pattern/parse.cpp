// The parser of patterns: pattern = both { "|" both }; both = term { "&" term };
// term = "(" pattern ")" | word [ "(" argument { "," argument } ")" ].
#include <cctype>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/term.h"

namespace kinfolk {
namespace {

using Node = std::shared_ptr<const Pattern>;

const std::vector<std::string>& terms() {
  static const std::vector<std::string> names = {
      "block_local", "block_table", "block_window", "blocks", "causal", "columns", "dilated", "distance", "fixed",
      "full",        "global",      "local2d",      "prefix", "random", "rows",    "stride",  "window"};
  return names;
}

class Parser {
 public:
  Parser(const std::string& text, const Value* let, const Place& place) : text_(text), let_(let), place_(place) {}

  Node whole() {
    Node node = either(0);
    space();
    if (at_ < text_.size()) fault(at_, "expected & or | or the end; found '", shown(at_), "'");
    return node;
  }

 private:
  static constexpr int kDeepest = 100, kMost = 1000;
  static constexpr int64_t kLargest = (int64_t{1} << 31) - 1;  ///< products of two stay far from 2^63
  static constexpr size_t kLongest = 1 << 16;                  ///< entries of a list

  template <class... Parts>
  [[noreturn]] void fault(size_t at, const Parts&... parts) const {
    std::string line = text_;  // control characters would move the caret
    for (char& c : line)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    refuse(place_.text(), "[pattern] ", parts..., "\n  ", line, "\n  ", std::string(at, ' '), "^");
  }
  std::string shown(size_t at) const { return at < text_.size() ? text_.substr(at, 1) : ""; }
  std::string end_or(size_t at) const { return at < text_.size() ? "'" + shown(at) + "'" : "the end"; }
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  static bool letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
  static bool digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
  std::string word() {
    const size_t begin = at_;
    while (at_ < text_.size() && (letter(text_[at_]) || digit(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  /// Takes the word if it comes next.
  bool take_word(const std::string& wanted) {
    space();
    const size_t begin = at_;
    if (at_ < text_.size() && letter(text_[at_]) && word() == wanted) return true;
    at_ = begin;
    return false;
  }

  Node either(int depth) {
    if (depth > kDeepest) fault(at_, "expected at most ", kDeepest, " parentheses inside each other; found more");
    Node node = both(depth);
    while (take('|')) node = std::make_shared<Either>(node, both(depth));
    return node;
  }
  Node both(int depth) {
    Node node = term(depth);
    while (take('&')) node = std::make_shared<Both>(node, term(depth));
    return node;
  }
  Node term(int depth) {
    space();
    const size_t begin = at_;
    if (++terms_ > kMost) fault(begin, "expected at most ", kMost, " terms; found more");
    if (take('(')) {
      Node node = either(depth + 1);
      if (!take(')')) fault(at_, "expected ) for the ( at column ", begin + 1, "; found ", end_or(at_));
      return node;
    }
    if (at_ >= text_.size() || !letter(text_[at_])) {
      fault(begin, "expected a term (causal, full, window(w), ...) or (; found ", end_or(begin));
    }
    name_ = word();
    if (name_ == "causal") return std::make_shared<Interval>(0, INT64_MAX, "causal");
    if (name_ == "full") return std::make_shared<Interval>(INT64_MIN, INT64_MAX, "full");
    if (std::find(terms().begin(), terms().end(), name_) == terms().end()) {
      fault(begin, "unknown term ", name_, suggest(name_, terms()));
    }
    if (!take('(')) fault(at_, "expected ( after ", name_, "; found ", end_or(at_));
    Node node = with_arguments(begin);
    if (!take(')')) fault(at_, "expected ) after the arguments of ", name_, "; found ", end_or(at_));
    return node;
  }

  Node with_arguments(size_t begin) {
    const std::string name = name_;
    if (name == "window") {
      const int64_t width = number("a width", 1, INT64_MAX);
      return std::make_shared<Interval>(1 - width, width - 1, text("window(", width, ")"));
    }
    if (name == "distance") {
      const auto bound = [&](int64_t any) {
        return take_word("any") ? any : number("a distance", -kLargest * kLargest, kLargest * kLargest);
      };
      const int64_t low = bound(INT64_MIN);
      comma();
      return std::make_shared<Interval>(low, bound(INT64_MAX));
    }
    if (name == "dilated") {
      const int64_t width = size("a width");
      const int64_t step = next("a step");
      const int64_t reach = times(width, step) - 1;
      return std::make_shared<Named>(
          text("dilated(", width, ", ", step, ")"),
          std::make_shared<Both>(std::make_shared<Interval>(-reach, reach), stride_term(step)));
    }
    if (name == "stride") return stride_term(size("a length"));
    if (name == "fixed") {
      const int64_t length = size("a length"), columns = next("columns");
      const int64_t place = take(',') ? number("a place", 0, kLargest) : 0;
      if ((place + 1) * columns > length) {
        fault(begin, "expected (m + 1) c columns within a length of ", length, "; found ", (place + 1) * columns);
      }
      return fixed_term(length, columns, place);
    }
    if (name == "block_local") {
      const int64_t queries = size("queries of a block");
      return block_local_term(queries, next("keys before it", 0));
    }
    if (name == "block_window") {
      const int64_t block = size("a block");
      return block_window_term(block, next("blocks on each side", 0));
    }
    if (name == "local2d") return grid();
    if (name == "blocks") return blocks();
    if (name == "columns") return columns_term("columns", places("global"));
    if (name == "rows") return rows_term(places("global"));
    if (name == "prefix") return columns_term("prefix", places("prefix"));
    if (name == "global") {
      const Places all = places("global");
      return std::make_shared<Named>(text("global(", all.words, ")"),
                                     std::make_shared<Either>(columns_term("columns", all), rows_term(all)));
    }
    if (name == "random") {
      const int64_t block = size("a block"), count = next("blocks a row"), seed = next("a seed", 0);
      if (count > 4096) fault(begin, "expected at most 4096 blocks a row; found ", count);
      return random_term(block, count, seed, take(',') ? std::optional(size("a length")) : std::nullopt);
    }
    const int64_t block = size("a block");  // block_table
    comma();
    std::vector<std::vector<int64_t>> rows;
    open();
    if (!take(']')) {
      do {
        rows.push_back(list());
      } while (more(rows.size()));
    }
    return block_table_term(block, std::move(rows));
  }

  Node grid() {
    Grid g{};
    g.height = size("rows of the image"), g.width = next("columns of the image");
    g.block_height = next("rows of a block"), g.block_width = next("columns of a block");
    g.top = next("rows above", 0), g.side = next("columns on each side", 0);
    comma();
    space();
    const size_t begin = at_;
    g.by_block = take_word("block");
    if (!g.by_block && !take_word("raster")) fault(begin, "expected raster or block; found ", end_or(begin));
    return local_2d_term(g);
  }

  Node blocks() {
    const int64_t n = size("blocks");
    const int64_t length = next("positions that are n blocks");
    if (n > static_cast<int64_t>(kLongest)) fault(at_, "expected at most ", kLongest, " blocks; found ", n);
    comma();
    space();
    const size_t begin = at_;
    std::vector<int64_t> permutation;
    std::string words;
    if (at_ < text_.size() && text_[at_] == '[') {
      permutation = list();
      std::vector<char> used(static_cast<size_t>(n));
      bool good = permutation.size() == used.size();
      for (size_t b = 0; good && b < permutation.size(); ++b) {
        good = permutation[b] < n && !used[static_cast<size_t>(permutation[b])];
        if (good) used[static_cast<size_t>(permutation[b])] = 1;
        words += text(b ? ", " : "[", permutation[b]);
      }
      if (!good) fault(begin, "expected each of 0 to ", n - 1, " once");
      words += "]";
    } else {
      const int64_t shift = number("a shift", -kLargest, kLargest);
      for (int64_t b = 0; b < n; ++b) permutation.push_back(((b + shift) % n + n) % n);
      words = text(shift);
    }
    return permuted_blocks_term(length, std::move(permutation), text("blocks(", n, ", ", length, ", ", words, ")"));
  }

  /// n, [0, 17, 32:40] or @fact.
  Places places(const std::string& fact) {
    Places out;
    space();
    const size_t begin = at_;
    if (take('@')) {
      const std::string name = word();
      if (name != fact) fault(begin, "expected @", fact, "; found @", name);
      out.fact = fact, out.known = false, out.words = "@" + fact;
      return out;
    }
    if (at_ < text_.size() && text_[at_] == '[' && fact != "prefix") {
      open();
      std::vector<Stretch> all;
      if (!take(']')) {
        do {
          const int64_t low = number("a position", 0, kLargest);
          all.push_back({low, take(':') ? number("the end of the range", low + 1, kLargest) - 1 : low});
        } while (more(all.size()));
      }
      std::sort(all.begin(), all.end(), [](const Stretch& a, const Stretch& b) { return a.low < b.low; });
      auto& merged = out.lanes[0];
      for (const Stretch& one : all) {
        if (!merged.empty() && one.low <= merged.back().high + 1) {
          merged.back().high = std::max(merged.back().high, one.high);
        } else {
          merged.push_back(one);
        }
      }
      out.words = "[";
      for (const Stretch& one : merged) {
        out.words += out.words.size() > 1 ? ", " : "";
        out.words += one.low == one.high ? text(one.low) : text(one.low, ":", one.high + 1);
      }
      out.words += "]";
      return out;
    }
    const int64_t count = number("a number of positions", 0, kLargest);
    if (count > 0) out.lanes[0].push_back({0, count - 1});
    out.words = text(count);
    return out;
  }

  void comma() {
    if (!take(',')) fault(at_, "expected , and another argument of ", name_, "; found ", end_or(at_));
  }
  void open() {
    if (!take('[')) fault(at_, "expected [; found ", end_or(at_));
  }
  /// After an entry of a list: whether another one follows.
  bool more(size_t entries) {
    if (entries > kLongest) fault(at_, "expected at most ", kLongest, " entries; found more");
    if (take(',')) return true;
    if (!take(']')) fault(at_, "expected , or ]; found ", end_or(at_));
    return false;
  }
  std::vector<int64_t> list() {
    std::vector<int64_t> out;
    open();
    if (take(']')) return out;
    do {
      out.push_back(number("an entry", 0, kLargest));
    } while (more(out.size()));
    return out;
  }
  int64_t size(const char* what) { return number(what, 1, kLargest); }
  int64_t next(const char* what, int64_t least = 1) {
    comma();
    return number(what, least, kLargest);
  }

  /// Digits with or without a sign, or the name of an integer in [let].
  int64_t number(const char* what, int64_t least, int64_t most) {
    space();
    const size_t begin = at_;
    int64_t value = 0;
    const bool minus = least < 0 && take('-');
    if (at_ < text_.size() && digit(text_[at_])) {
      for (; at_ < text_.size() && digit(text_[at_]); ++at_)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
          fault(begin, "expected an integer below 2^63; found a larger one");
      if (minus) value = -value;
      if (value < least) fault(begin, "expected ", what, " of at least ", least, "; found ", value);
      if (value > most) fault(begin, "expected ", what, " of at most ", most, "; found ", value);
      return value;
    }
    if (minus || at_ >= text_.size() || !letter(text_[at_])) {
      fault(begin, "expected an integer of at least ", least, " or a name of [let]; found ", end_or(at_));
    }
    const std::string name = word();
    const Value* found = let_ ? let_->find(name) : nullptr;
    if (!found) {
      std::vector<std::string> known;
      if (const auto* table = let_ ? let_->as<Value::Table>() : nullptr)
        for (const auto& entry : *table) known.push_back(entry.first);
      fault(begin, "unknown name ", name, known.empty() ? std::string("; [let] has no names") : suggest(name, known));
    }
    const int64_t* given = found->as<int64_t>();
    if (!given) fault(begin, "expected let.", name, " to be an integer; found ", found->kind());
    if (*given < least) fault(begin, "expected let.", name, " to be at least ", least, "; found ", *given);
    if (*given > most) fault(begin, "expected let.", name, " to be at most ", most, "; found ", *given);
    return *given;
  }

  const std::string& text_;
  const Value* let_;
  const Place& place_;
  size_t at_ = 0;
  int terms_ = 0;
  std::string name_;  ///< of the term whose arguments are read
};

}  // namespace

std::shared_ptr<const Pattern> parse_pattern(const std::string& text, const Value* let, const Place& place) {
  return Parser(text, let, place).whole();
}

}  // namespace kinfolk
