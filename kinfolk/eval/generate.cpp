#include "kinfolk/eval/generate.h"

#include <chrono>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// A state with the tokens that made it; knows how many more fit.
class Stream {
 public:
  Stream(Model& model, const GenerateOptions& options) : model_(model), options_(options), traits_(model.traits()) {
    if (!traits_.streams)
      refuse("[generate] expected a member that streams; found one that does not: ", traits_.why_not);
    restart();
    base_ = state_.bytes();
    if (!traits_.bounded) {  // bytes of one token, measured
      State probe = model_.start(1);
      feed_into(probe, {0});
      State longer = probe;
      feed_into(longer, {0});
      each_ = longer.bytes() - probe.bytes();
    }
    capacity_ = traits_.context > 0 ? traits_.context : INT64_MAX;
    if (options.memory_limit > 0) {
      if (base_ + each_ > options.memory_limit) {
        fail("[generate.memory_limit] expected at least ", base_ + each_, " bytes, the state of one token; found ",
             options.memory_limit);
      }
      if (each_ > 0) capacity_ = std::min(capacity_, (options.memory_limit - base_) / each_);
    }
  }

  std::string policy() const {
    if (capacity_ == INT64_MAX) return traits_.bounded ? "bounded state: no limit" : "state grows: no limit was set";
    return text(capacity_ == traits_.context ? "positions end at " : "memory ends at ", capacity_, " tokens: ",
                options_.at_limit == "refeed" ? "then a fresh state is made from the newest half" : "then it stops");
  }
  bool full() const { return static_cast<int64_t>(fed_.size()) >= capacity_; }
  int64_t capacity() const { return capacity_; }
  const State& state() const { return state_; }

  /// How many of the newest tokens of a prompt are read: all, or half of what fits.
  int64_t readable(int64_t length) const { return length <= capacity_ ? length : std::max<int64_t>(1, capacity_ / 2); }

  /// Feeds tokens and returns the scores after the last one, [V]; undefined when `reading` said to end.
  Tensor feed(std::vector<int64_t> tokens, const std::function<bool(double)>& reading = {}) {
    tokens.erase(tokens.begin(), tokens.end() - readable(static_cast<int64_t>(tokens.size())));
    Tensor last;
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(options_.chunk)) {
      const size_t end = std::min(tokens.size(), at + static_cast<size_t>(options_.chunk));
      last = feed_into(state_, {tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                tokens.begin() + static_cast<std::ptrdiff_t>(end)});
      if (reading && !reading(static_cast<double>(end) / static_cast<double>(tokens.size()))) return {};
    }
    if (capacity_ != INT64_MAX) fed_.insert(fed_.end(), tokens.begin(), tokens.end());
    return last;
  }

  void refeed() {
    std::vector<int64_t> kept(fed_.end() - static_cast<std::ptrdiff_t>(std::max<int64_t>(1, capacity_ / 2)),
                              fed_.end());
    kept.pop_back();  // room is needed for the token that comes next; the newest is fed by the caller
    const std::vector<int64_t> newest = {fed_.back()};
    restart();
    if (!kept.empty()) feed(kept);
    pending_ = newest;
  }
  std::vector<int64_t> take_pending() { return std::exchange(pending_, {}); }

 private:
  void restart() {
    state_ = model_.start(1);
    fed_.clear();
  }
  Tensor feed_into(State& state, const std::vector<int64_t>& tokens) {
    const Batch batch{at::tensor(tokens, at::kLong).unsqueeze(0), {}};
    return model_.score(batch, &state, options_.sampler.seed).select(1, -1).squeeze(0);
  }

  Model& model_;
  const GenerateOptions& options_;
  Traits traits_;
  State state_;
  std::vector<int64_t> fed_, pending_;
  int64_t base_ = 0, each_ = 0, capacity_ = INT64_MAX;
};

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
  if (options.at_limit != "refeed" && options.at_limit != "stop") {
    refuse("[generate.at_limit] expected refeed or stop; found ", options.at_limit);
  }
  if (options.chunk < 1) refuse("[generate.chunk] expected at least 1; found ", options.chunk);
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

}  // namespace

Generated generate(Model& model, const std::string& prompt, const GenerateOptions& options,
                   const std::function<bool(const Piece&)>& out) {
  at::NoGradGuard no_grad;
  model.eval();
  check_generate(options);
  Sampler sampler(options.sampler);
  Stream stream(model, options);
  Generated result;
  result.policy = stream.policy();
  std::vector<int64_t> history;
  const int64_t vocabulary = model.size().vocabulary;
  for (const unsigned char c : prompt) {
    if (c >= vocabulary)
      refuse("[generate.prompt] expected bytes below size.vocabulary = ", vocabulary, "; found ", int{c});
    history.push_back(c);
  }
  if (history.empty()) history.push_back(std::min<int64_t>('\n', vocabulary - 1));
  result.prompt_tokens = static_cast<int64_t>(history.size());
  result.prompt_read = stream.readable(result.prompt_tokens);
  if (options.at_limit == "stop" && result.prompt_read < result.prompt_tokens) {
    refuse("[generate.prompt] expected at most ", stream.capacity(), " bytes, since it is to stop there; found ",
           result.prompt_tokens, " (refeed reads the newest half of what fits)");
  }

  auto began = std::chrono::steady_clock::now();
  const auto finish = [&](const std::string& ended) {
    result.ended = ended;
    result.decode_seconds = seconds_since(began);
    result.state_bytes = stream.state().bytes();
    result.largest_state = std::max(result.largest_state, result.state_bytes);
    return result;
  };
  Tensor scores = stream.feed(history, options.reading);
  result.prompt_seconds = seconds_since(began);
  began = std::chrono::steady_clock::now();
  if (!scores.defined()) return finish("asked");
  const auto window = static_cast<size_t>(options.sampler.repetition_window);
  Writer writer(options, out, result.text);
  while (options.tokens < 0 || result.tokens < options.tokens) {
    result.largest_state = std::max(result.largest_state, stream.state().bytes());
    const Sampler::Draw draw = sampler.draw(scores.narrow(0, 0, std::min<int64_t>(256, vocabulary)), history);
    history.push_back(draw.token);
    if (history.size() > 2 * window + 1024)
      history.erase(history.begin(), history.end() - static_cast<int64_t>(window));
    ++result.tokens;
    const bool goes_on = writer.add(draw);
    if (writer.stopped()) return finish("stop string");
    if (!goes_on) return finish("asked");
    if (options.tokens >= 0 && result.tokens == options.tokens) break;
    std::vector<int64_t> next = {draw.token};
    if (stream.full()) {
      if (options.at_limit == "stop") {
        writer.finish();
        return finish(text("limit of ", stream.capacity(), " tokens"));
      }
      stream.refeed();
      ++result.refeeds;
      next = stream.take_pending();
      next.push_back(draw.token);
    }
    scores = stream.feed(next);
  }
  writer.finish();
  return finish("tokens");
}

}  // namespace kinfolk
