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
    return text(options_.at_limit == "refeed" ? "refeed: at " : "stop: at ", capacity_, " tokens",
                options_.at_limit == "refeed" ? " a fresh state is made from the newest half" : "");
  }
  bool full() const { return static_cast<int64_t>(fed_.size()) >= capacity_; }
  int64_t capacity() const { return capacity_; }
  const State& state() const { return state_; }

  /// Feeds tokens and returns the scores after the last one. [V]
  Tensor feed(std::vector<int64_t> tokens) {
    const auto room = static_cast<size_t>(std::min<int64_t>(capacity_, INT64_MAX - 1));
    if (tokens.size() > room) {  // a prompt longer than what fits: its newest half-capacity
      tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(std::max<size_t>(1, room / 2)));
    }
    Tensor last;
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(options_.chunk)) {
      const size_t end = std::min(tokens.size(), at + static_cast<size_t>(options_.chunk));
      last = feed_into(state_, {tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                tokens.begin() + static_cast<std::ptrdiff_t>(end)});
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

Generated generate(Model& model, const std::string& prompt, const GenerateOptions& options,
                   const std::function<bool(const Piece&)>& out) {
  at::NoGradGuard no_grad;
  model.eval();
  if (options.at_limit != "refeed" && options.at_limit != "stop") {
    refuse("[generate.at_limit] expected refeed or stop; found ", options.at_limit);
  }
  for (const auto& stop : options.stop)
    if (stop.empty()) refuse("[generate.stop] expected text; found an empty stop string");
  Sampler sampler(options.sampler);
  Stream stream(model, options);
  Generated result;
  result.policy = stream.policy();
  std::vector<int64_t> history;
  for (const unsigned char c : prompt.empty() ? std::string("\n") : prompt) history.push_back(c);
  result.prompt_tokens = static_cast<int64_t>(history.size());

  auto began = std::chrono::steady_clock::now();
  Tensor scores = stream.feed(history);
  result.prompt_seconds = seconds_since(began);
  began = std::chrono::steady_clock::now();
  result.ended = "tokens";
  size_t sent = 0;
  while (options.tokens < 0 || result.tokens < options.tokens) {
    const Sampler::Draw draw = sampler.draw(scores, history);
    history.push_back(draw.token);
    ++result.tokens;
    result.text += static_cast<char>(draw.token);
    bool stopped = false;
    for (const auto& stop : options.stop) {
      const size_t found =
          result.text.find(stop, result.text.size() > 2 * stop.size() ? result.text.size() - stop.size() : 0);
      if (found != std::string::npos) result.text.resize(found), stopped = true;
    }
    const size_t ready = stopped ? result.text.size()
                                 : std::min(result.text.size() - held_back(result.text, options.stop),
                                            sent + whole_characters(std::string_view(result.text).substr(sent)));
    const std::string_view piece =
        ready > sent ? std::string_view(result.text).substr(sent, ready - sent) : std::string_view();
    sent = std::max(sent, ready);
    result.largest_state = std::max(result.largest_state, stream.state().bytes());
    if (out && !out({draw.token, draw.log_probability, piece})) {
      result.ended = "asked";
      break;
    }
    if (stopped) {
      result.ended = "stop string";
      break;
    }
    if (options.tokens >= 0 && result.tokens == options.tokens) break;
    if (stream.full()) {
      if (options.at_limit == "stop") {
        result.ended = "limit";
        break;
      }
      stream.refeed();
      ++result.refeeds;
      std::vector<int64_t> next = stream.take_pending();
      next.push_back(draw.token);
      scores = stream.feed(next);
    } else {
      scores = stream.feed({draw.token});
    }
  }
  if (out && sent < result.text.size()) out({-1, 0, std::string_view(result.text).substr(sent)});
  result.decode_seconds = seconds_since(began);
  result.state_bytes = stream.state().bytes();
  result.largest_state = std::max(result.largest_state, result.state_bytes);
  return result;
}

}  // namespace kinfolk
