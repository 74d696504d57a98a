#include "kinfolk/eval/generate.h"

#include <chrono>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// How many bytes at the end of `text` might become a stop string.
size_t held_back(const std::string& text, const std::vector<std::string>& stops) {
  size_t held = 0;
  for (const auto& stop : stops)
    for (size_t n = std::min(stop.size(), text.size()); n > held; --n)
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) held = n;
  return held;
}

}  // namespace

size_t whole_characters(std::string_view bytes) {
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const auto c = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((c & 0xC0) == 0x80) continue;  // a continuation byte: look further back
    const size_t needs = c >= 0xF0 && c < 0xF8 ? 4 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xC0 && c < 0xE0 ? 2 : 1;
    return needs > back ? bytes.size() - back : bytes.size();
  }
  return bytes.size();
}

void check_generate(const GenerateOptions& options) {
  for (const auto& stop : options.stop)
    if (stop.empty()) refuse("[generate.stop] expected text; found an empty stop string");
  const Sampler checks(options.sampler);
}

namespace {

/// The text that was drawn, let out in whole characters and never a part of what might become a stop string.
class Writer {
 public:
  Writer(const GenerateOptions& options, const std::function<bool(const Piece&)>& out, std::string& text)
      : options_(options), out_(out), text_(text) {
    for (const auto& stop : options.stop) longest_ = std::max(longest_, stop.size());
  }
  /// Returns false when the callback asks to end.
  bool add(const Sampler::Draw& draw) {
    text_ += static_cast<char>(draw.token);
    for (const auto& stop : options_.stop) {
      const size_t from = text_.size() - std::min(text_.size(), stop.size());
      if (text_.compare(from, std::string::npos, stop) == 0) text_.resize(from), stopped_ = true;
    }
    const size_t settled = stopped_ ? text_.size() : text_.size() - held_back(text_, options_.stop);
    size_t ready = sent_;
    if (settled > sent_) {
      ready = stopped_ ? settled : sent_ + whole_characters(std::string_view(text_).substr(sent_, settled - sent_));
    }
    if (!out_) return true;
    const bool goes_on = out_({draw.token, draw.log_probability, std::string_view(text_).substr(sent_, ready - sent_)});
    sent_ = ready;
    if (options_.tokens < 0 && sent_ > kKept + longest_) {  // without end: what was let out is forgotten
      text_.erase(0, sent_ - longest_);
      sent_ = longest_;
    }
    return goes_on;
  }
  /// What was held back, when nothing more comes.
  void finish() {
    if (out_ && sent_ < text_.size()) out_({-1, 0, std::string_view(text_).substr(sent_)});
  }
  bool stopped() const { return stopped_; }

 private:
  static constexpr size_t kKept = 4096;
  const GenerateOptions& options_;
  const std::function<bool(const Piece&)>& out_;
  std::string& text_;
  size_t sent_ = 0, longest_ = 0;
  bool stopped_ = false;
};

/// int64 [1, n]; the newline where there is nothing to begin from.
Tensor prompt_of(const Session& session, const std::string& prompt) {
  const int64_t vocabulary = session.model().size().vocabulary;
  if (prompt.empty() && !session.scores().defined()) {
    return at::full({1, 1}, std::min<int64_t>('\n', vocabulary - 1), at::kLong);
  }
  Tensor tokens = at::empty({1, static_cast<int64_t>(prompt.size())}, at::kLong);
  auto* token = tokens.data_ptr<int64_t>();
  for (const unsigned char c : prompt) {
    if (c >= vocabulary)
      refuse("[generate.prompt] expected bytes below size.vocabulary = ", vocabulary, "; found ", int{c});
    *token++ = c;
  }
  return tokens;
}

bool at_its_end(const Session& session) { return session.room() == 0 && session.at_limit() == "stop"; }

/// The scores after the prompt; undefined: reading was asked to end.
Tensor read_prompt(Session& session, const Tensor& prompt, const GenerateOptions& options, Generated& result) {
  result.prompt_tokens = prompt.size(1);
  if (session.at_limit() == "stop" && result.prompt_tokens > session.room()) {
    refuse("[generate.prompt] expected at most ", session.room(), " bytes, since it is to stop there; found ",
           result.prompt_tokens, " (refeed reads the newest half of what fits)");
  }
  result.prompt_skipped = session.skip(prompt);
  const int64_t left = result.prompt_tokens - result.prompt_skipped;
  const Tensor scores =
      session.feed(prompt.narrow(1, result.prompt_skipped, left), [&](const Tensor& chunk, int64_t from) {
        result.prompt_read = from + chunk.size(1);
        result.largest_state = std::max(result.largest_state, session.bytes());
        return !options.reading || options.reading(static_cast<double>(result.prompt_read) / static_cast<double>(left));
      });
  if (left == 0 && options.reading) options.reading(1);
  if (session.scores().defined()) check_scores(session.scores());
  return scores;
}

}  // namespace

Generated generate(Model& model, const std::string& prompt, const GenerateOptions& options,
                   const std::function<bool(const Piece&)>& out) {
  Session session(model, options.session);
  return generate(session, prompt, options, out);
}

Generated generate(Session& session, const std::string& prompt, const GenerateOptions& options,
                   const std::function<bool(const Piece&)>& out) {
  at::NoGradGuard no_grad;
  check_generate(options);
  if (session.lanes() != 1) fail("[generate] expected a session of one lane; found ", session.lanes());
  if (options.sampler.repetition != 1) session.keep_recent(options.sampler.repetition_window);
  Generated result;
  result.policy = session.policy();
  const int64_t refeeds = session.refeeds();
  auto began = std::chrono::steady_clock::now();
  Writer writer(options, out, result.text);
  const auto finish = [&](const std::string& ended) {
    if (ended != "stop string" && (ended != "asked" || options.read_last)) writer.finish();
    result.ended = ended;
    result.decode_seconds = seconds_since(began);
    result.state_bytes = session.bytes();
    result.most_bytes = session.most_bytes();
    result.refeeds = session.refeeds() - refeeds;
    result.largest_state = std::max(result.largest_state, result.state_bytes);
    return result;
  };
  Tensor scores = read_prompt(session, prompt_of(session, prompt), options, result);
  result.prompt_seconds = seconds_since(began);
  began = std::chrono::steady_clock::now();
  if (!scores.defined()) return finish("asked");
  const int64_t bytes = std::min<int64_t>(256, session.model().size().vocabulary);
  Sampler sampler(options.sampler, session.position());
  while (options.tokens < 0 || result.tokens < options.tokens) {
    if (at_its_end(session)) return finish(text("limit of ", session.capacity(), " tokens"));
    result.largest_state = std::max(result.largest_state, session.bytes());
    const Sampler::Draw draw = sampler.draw(scores.squeeze(0).narrow(0, 0, bytes), session.recent());
    ++result.tokens;
    const bool goes_on = writer.add(draw);
    const bool last = writer.stopped() || !goes_on || result.tokens == options.tokens;
    if (!last || options.read_last) scores = session.step(at::tensor({draw.token}, at::kLong));
    if (last && options.read_last) check_scores(scores);
    if (last) return finish(writer.stopped() ? "stop string" : goes_on ? "tokens" : "asked");
  }
  return finish("tokens");
}

}  // namespace kinfolk
