#include "kinfolk/pattern/pattern.h"

#include <algorithm>
#include <cctype>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

const std::vector<std::string>& terms() {
  static const std::vector<std::string> names = {"causal", "full", "window"};
  return names;
}

struct Full final : Pattern {
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override { return at::ones_like(q_at - k_at, at::kBool); }
  int64_t nearest() const override { return INT64_MIN; }
  int64_t farthest() const override { return INT64_MAX; }
  bool interval() const override { return true; }
  std::string text() const override { return "full"; }
};

struct Causal final : Pattern {
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override { return q_at.ge(k_at); }
  int64_t nearest() const override { return 0; }
  int64_t farthest() const override { return INT64_MAX; }
  bool interval() const override { return true; }
  std::string text() const override { return "causal"; }
};

struct Window final : Pattern {
  explicit Window(int64_t width) : width_(width) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override { return (q_at - k_at).abs().lt(width_); }
  int64_t nearest() const override { return 1 - width_; }
  int64_t farthest() const override { return width_ - 1; }
  bool interval() const override { return true; }
  std::string text() const override { return kinfolk::text("window(", width_, ")"); }

 private:
  int64_t width_;
};

struct Either final : Pattern {
  Either(std::shared_ptr<const Pattern> a, std::shared_ptr<const Pattern> b) : a_(std::move(a)), b_(std::move(b)) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override {
    return a_->sees(q_at, k_at).logical_or_(b_->sees(q_at, k_at));
  }
  int64_t nearest() const override { return std::min(a_->nearest(), b_->nearest()); }
  int64_t farthest() const override { return std::max(a_->farthest(), b_->farthest()); }
  /// Two intervals without a gap between them are one.
  bool interval() const override {
    return a_->interval() && b_->interval() && a_->nearest() <= a_->farthest() && b_->nearest() <= b_->farthest() &&
           (a_->farthest() == INT64_MAX || b_->nearest() <= a_->farthest() + 1) &&
           (b_->farthest() == INT64_MAX || a_->nearest() <= b_->farthest() + 1);
  }
  std::string text() const override { return a_->text() + " | " + b_->text(); }

 private:
  std::shared_ptr<const Pattern> a_, b_;
};

struct Both final : Pattern {
  Both(std::shared_ptr<const Pattern> a, std::shared_ptr<const Pattern> b) : a_(std::move(a)), b_(std::move(b)) {}
  Tensor sees(const Tensor& q_at, const Tensor& k_at) const override {
    return a_->sees(q_at, k_at).logical_and_(b_->sees(q_at, k_at));
  }
  int64_t nearest() const override { return std::max(a_->nearest(), b_->nearest()); }
  int64_t farthest() const override { return std::min(a_->farthest(), b_->farthest()); }
  bool interval() const override { return a_->interval() && b_->interval(); }
  std::string text() const override { return factor(*a_) + " & " + factor(*b_); }

 private:
  static std::string factor(const Pattern& part) {
    return dynamic_cast<const Either*>(&part) ? "(" + part.text() + ")" : part.text();
  }
  std::shared_ptr<const Pattern> a_, b_;
};

using Node = std::shared_ptr<const Pattern>;

/// pattern = both { "|" both }; both = term { "&" term }; term = "(" pattern ")" | word [ "(" number ")" ].
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

  template <class... Parts>
  [[noreturn]] void fault(size_t at, const Parts&... parts) const {
    std::string line = text_;  // control characters would move the caret
    for (char& c : line)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    refuse(place_.text(), "[pattern] ", parts..., "\n  ", line, "\n  ", std::string(at, ' '), "^");
  }
  std::string shown(size_t at) const { return at < text_.size() ? text_.substr(at, 1) : ""; }
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
      fault(begin, "expected a term (causal, full, window(w)) or (; found ", end_or(begin));
    }
    const std::string name = word();
    if (name == "causal") return std::make_shared<Causal>();
    if (name == "full") return std::make_shared<Full>();
    if (name == "window") {
      if (!take('(')) fault(at_, "expected ( after window; found ", end_or(at_));
      const int64_t width = number();
      if (!take(')')) fault(at_, "expected ) after the width of the window; found ", end_or(at_));
      return std::make_shared<Window>(width);
    }
    fault(begin, "unknown term ", name, suggest(name, terms()));
  }
  std::string end_or(size_t at) const { return at < text_.size() ? "'" + shown(at) + "'" : "the end"; }

  /// A width of at least 1: digits, or the name of an integer in [let].
  int64_t number() {
    space();
    const size_t begin = at_;
    if (at_ < text_.size() && digit(text_[at_])) {
      int64_t value = 0;
      for (; at_ < text_.size() && digit(text_[at_]); ++at_)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
          fault(begin, "expected an integer below 2^63; found a larger one");
      if (value < 1) fault(begin, "expected a width of at least 1; found ", value);
      return value;
    }
    if (at_ >= text_.size() || !letter(text_[at_])) {
      fault(begin, "expected a positive integer or a name of [let]; found ", end_or(begin));
    }
    const std::string name = word();
    const Value* found = let_ ? let_->find(name) : nullptr;
    if (!found) {
      std::vector<std::string> known;
      if (const auto* table = let_ ? let_->as<Value::Table>() : nullptr)
        for (const auto& entry : *table) known.push_back(entry.first);
      fault(begin, "unknown name ", name, known.empty() ? std::string("; [let] has no names") : suggest(name, known));
    }
    const int64_t* value = found->as<int64_t>();
    if (!value) fault(begin, "expected let.", name, " to be an integer; found ", found->kind());
    if (*value < 1) fault(begin, "expected let.", name, " to be at least 1; found ", *value);
    return *value;
  }

  const std::string& text_;
  const Value* let_;
  const Place& place_;
  size_t at_ = 0;
  int terms_ = 0;
};

}  // namespace

std::shared_ptr<const Pattern> parse_pattern(const std::string& text, const Value* let, const Place& place) {
  return Parser(text, let, place).whole();
}

}  // namespace kinfolk
