#include "kinfolk/eval/endless.h"

#include <algorithm>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/eval/interleave.h"

namespace kinfolk {
namespace {

constexpr int64_t kBlock = 4096;  // tokens that are drawn together
constexpr int64_t kSteps = 64;    // of one timed run
constexpr int64_t kPhase = 4096;  // a multiple of every recipe's segments

/// Tokens [from, from + length) of the text that has no end: the same whoever asks.
Tensor text_at(int64_t vocabulary, int64_t from, int64_t length) {
  std::vector<Tensor> parts;
  for (int64_t block = from / kBlock; block * kBlock < from + length; ++block) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(block + 1));
    const Tensor drawn = at::randint(vocabulary, {1, kBlock}, generator, at::kLong);
    const int64_t first = std::max<int64_t>(0, from - block * kBlock);
    parts.push_back(drawn.slice(1, first, std::min(kBlock, from + length - block * kBlock)));
  }
  return at::cat(parts, 1);
}

/// Feeds tokens [from, to) in pieces of n.
Tensor feed(Session& session, int64_t from, int64_t to, int64_t n, const std::function<void(int64_t at)>& after = {}) {
  const int64_t vocabulary = session.model().size().vocabulary;
  Tensor last;
  for (int64_t at = from; at < to; at += n) {
    last = session.feed(text_at(vocabulary, at, std::min(n, to - at)));
    if (after) after(std::min(at + n, to));
  }
  return last;
}

/// Scores of the tokens [from, to), fed in pieces of these lengths in turn.
Tensor scores_of(Session& session, int64_t from, int64_t to, const std::vector<int64_t>& pieces) {
  std::vector<Tensor> out;
  const int64_t vocabulary = session.model().size().vocabulary;
  for (size_t n = 0; from < to; ++n) {
    const int64_t length = std::min(pieces[n % pieces.size()], to - from);
    session.feed(text_at(vocabulary, from, length), [&](const Tensor& scores, int64_t) {
      out.push_back(scores);
      return true;
    });
    from += length;
  }
  return at::cat(out, 1);
}

double apart(const Tensor& a, const Tensor& b) {
  const double difference = (a - b).abs().max().item<double>(), scale = b.abs().max().item<double>();
  return difference / std::max(scale, 1e-30);
}

}  // namespace

void check_endless(const Model& model, const EndlessOptions& options) {
  if (options.tokens < 2) refuse("[stream.tokens] expected at least 2; found ", options.tokens);
  const Traits traits = model.traits();
  if (!traits.streams) {
    refuse("[stream] expected a member that streams; found ", model.recipe().name, ": ", traits.why_not);
  }
  if (options.memory_limit == 0 && model.most_bytes(1) < 0) {
    refuse("[stream] expected a member whose state is bounded, or a memory limit; found ", model.recipe().name, ": ",
           model.keeps());
  }
}

Endless read_endless(Model& model, const EndlessOptions& options) {
  check_endless(model, options);
  const at::NoGradGuard guard;
  SessionOptions how;
  how.chunk = options.chunk, how.memory_limit = options.memory_limit, how.at_limit = options.at_limit;
  Session session(model, how);
  Endless out;
  out.tokens = options.tokens, out.most_bytes = session.most_bytes(), out.policy = session.policy();
  const int64_t early_at = std::min(options.early, options.tokens / 2);
  const int64_t tail = std::min(options.tail, options.tokens - early_at);
  const auto watch = [&](int64_t at) {
    out.state_bytes = std::max(out.state_bytes, session.bytes());
    if (options.progress) options.progress(static_cast<double>(at) / static_cast<double>(options.tokens), "reading");
  };
  const double first = cpu_seconds();
  feed(session, 0, early_at, options.chunk, watch);
  double spent = cpu_seconds() - first;
  const Session early = session;
  reset_peak();
  out.resident_early = resident_bytes();
  const double began = cpu_seconds();
  feed(session, early_at, options.tokens - tail, options.chunk, watch);
  spent += cpu_seconds() - began;
  out.read = static_cast<double>(options.tokens - tail) / std::max(spent, 1e-9);
  out.resident_late = resident_bytes();
  out.peak_growth = std::max<int64_t>(0, peak_resident_bytes() - out.resident_early);

  Session other = session;
  const Tensor want = scores_of(session, options.tokens - tail, options.tokens, {options.chunk});
  const Tensor got = scores_of(other, options.tokens - tail, options.tokens, {1, 97, 31, options.chunk / 2 + 1});
  watch(options.tokens);
  out.drift = apart(got, want);
  if (options.twice) {
    Session again(model, how);
    const int64_t n = std::max<int64_t>(1, options.chunk * 3 / 4 + 1);
    const Tensor last = feed(again, 0, options.tokens, n, [&](int64_t at) {
      if (options.progress) options.progress(static_cast<double>(at) / static_cast<double>(options.tokens), "again");
    });
    out.drift_twice = apart(last, session.scores());
  }

  // A query sees more of its segment at the end than at the beginning: both are timed at the same place of theirs.
  const int64_t phase = std::clamp<int64_t>(early_at, 1, kPhase);
  const int64_t later = options.tokens + (phase - (options.tokens - early_at) % phase) % phase;
  feed(session, options.tokens, later, options.chunk, [](int64_t) {});
  const Tensor more = text_at(model.size().vocabulary, later, kSteps);
  const auto steps = [&](const Session& from) {
    return [&more, &from] {
      Session mine = from;
      for (int64_t t = 0; t < kSteps; ++t) mine.step(more.select(1, t));
    };
  };
  const Session late = session;
  Turns turns;
  turns.seconds = options.seconds, turns.least = 5, turns.most = 101;
  const Interleaved timed = interleave({steps(early), steps(late)}, turns);
  out.early_step = timed.time(0) / kSteps, out.late_step = timed.time(1) / kSteps, out.ratio = timed.ratio(1, 0);
  return out;
}

}  // namespace kinfolk
