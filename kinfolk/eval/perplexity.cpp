#include "kinfolk/eval/perplexity.h"

#include <chrono>
#include <numbers>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/nn/retrieve/retriever.h"

namespace kinfolk {
namespace {

/// [0, 16), [16, 32), [32, 64), ... up to `length`.
std::vector<std::pair<int64_t, int64_t>> ranges_of(int64_t length) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t from = 0, to = 16; from < length; from = to, to *= 2) out.emplace_back(from, std::min(to, length));
  return out;
}

/// Bits of each window over each of the ranges of positions, summed: [windows, ranges], double. Nothing here grows with
/// the length.
Tensor window_bits(Model& model, Session* session, const Bytes& text, const std::vector<int64_t>& starts,
                   const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t length, int64_t block, int64_t chunk,
                   LengthScore& result, const std::function<void(int64_t)>& read) {
  const auto lanes = static_cast<int64_t>(starts.size());
  Tensor sums = at::zeros({lanes, static_cast<int64_t>(ranges.size())}, at::kDouble);
  const bool retrieves = dynamic_cast<Retrieves*>(&model.head()) != nullptr;
  for (int64_t at = 0, in_block = 0; at < length;) {
    if (session && block > 0 && in_block == 0) session->reset();
    // What does not stream reads whole blocks.
    const int64_t n = std::min({session ? chunk : block, length - at, block > 0 ? block - in_block : length});
    const Tensor tokens = gather_tokens(text, starts, at, n + 1);
    const auto count_bits = [&](const Tensor& scores, int64_t begin) {
      const int64_t from_here = at + begin, count = scores.size(1);
      const Tensor log_p = scores.to(at::kFloat).log_softmax(-1);  // [B, L, V]
      const Tensor target = tokens.narrow(1, begin + 1, count).unsqueeze(-1);
      const Tensor bits = log_p.gather(-1, target).squeeze(-1).to(at::kDouble) / -std::numbers::ln2;  // [B, L]
      for (size_t r = 0; r < ranges.size(); ++r) {
        const int64_t from = std::max(ranges[r].first, from_here);
        const int64_t to = std::min(ranges[r].second, from_here + count);
        if (from < to) {
          sums.select(1, static_cast<int64_t>(r)).add_(bits.slice(1, from - from_here, to - from_here).sum(1));
        }
      }
      if (session) result.held_bytes = std::max(result.held_bytes, session->bytes() / std::max<int64_t>(1, lanes));
      return true;
    };
    std::map<std::string, Tensor> facts;
    if (retrieves) facts[kPlace] = at::tensor(starts).unsqueeze(1) + at::arange(at, at + n);  // [B, L]
    if (session) {
      session->feed(tokens.narrow(1, 0, n), count_bits, facts);
    } else {
      count_bits(model.score({tokens.narrow(1, 0, n), facts}), 0);
    }
    at += n;
    read(n * lanes);
    in_block = block > 0 ? (in_block + n) % block : in_block + n;
  }
  if (session) result.state_bytes = session->state().bytes() / std::max<int64_t>(1, lanes);
  return sums;
}

/// A column of sums, one a window, divided by how many tokens each sums.
std::vector<double> mean_each(const Tensor& column, int64_t tokens) {
  const Tensor each = (column / static_cast<double>(tokens)).contiguous();
  const auto* values = each.const_data_ptr<double>();
  return {values, values + each.numel()};
}

}  // namespace

std::pair<double, double> mean_and_error(const std::vector<double>& values) {
  const double n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / n;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, n > 1 ? std::sqrt(squares / (n - 1) / n) : std::nan("")};
}

Tensor gather_tokens(const Bytes& text, const std::vector<int64_t>& starts, int64_t from, int64_t length) {
  const auto lanes = static_cast<int64_t>(starts.size());
  Tensor out = at::empty({lanes, length}, at::kLong);
  auto* data = out.data_ptr<int64_t>();
  for (int64_t b = 0; b < lanes; ++b)
    for (int64_t l = 0; l < length; ++l)
      data[b * length + l] = text.at(static_cast<size_t>(starts[static_cast<size_t>(b)] + from + l));
  return out;
}

void check_says_next(const Recipe& recipe) {
  const Value* objective = recipe.tree.find("objective");
  if (!objective || Spec(*objective).kind() != "masked") return;
  refuse(
      "[eval] expected a member that says which token comes next; found one that fills in hidden tokens (objective "
      "masked) and would be asked for what it sees");
}

void check_scorable(const Model& model, const Bytes& text, const std::vector<int64_t>& lengths,
                    const std::string& mode) {
  const Traits traits = model.traits();
  check_says_next(model.recipe());
  if (mode != "auto" && mode != "stream" && mode != "blocks") {
    refuse("[eval.mode] expected auto, stream or blocks; found ", mode);
  }
  if (mode == "stream" && !traits.streams) refuse("[eval.mode] expected blocks; found stream: ", traits.why_not);
  if (mode == "stream" && traits.context > 0) {
    refuse("[eval.mode] expected blocks; found stream: positions end at ", traits.context);
  }
  if (lengths.empty()) refuse("[eval.lengths] expected at least one length; found none");
  for (const int64_t length : lengths) {
    if (length < 1) refuse("[eval.lengths] expected lengths of at least 1; found ", length);
    if (length >= static_cast<int64_t>(text.size())) {
      fail("[eval.data] expected at least ", length, " bytes and the one that follows, to score a window of ", length,
           "; found ", text.size());
    }
  }
  const auto vocabulary = model.size().vocabulary;
  if (const auto highest = std::max_element(text.begin(), text.end());
      highest != text.end() && *highest >= vocabulary) {
    fail("[eval.data] expected bytes below size.vocabulary = ", vocabulary, "; found ", int{*highest});
  }
}

Scores score(Model& model, const Bytes& text, const ScoreOptions& options) {
  check_scorable(model, text, options.lengths, options.mode);
  if (options.chunk < 1) refuse("[eval.chunk] expected at least 1; found ", options.chunk);
  if (options.lanes < 1) refuse("[eval.lanes] expected at least 1; found ", options.lanes);
  if (options.from && options.lanes != 1) {
    refuse("[eval.lanes] expected 1 where windows go on from a session; found ", options.lanes);
  }
  if (options.last < 0) refuse("[eval.last] expected at least 0; found ", options.last);
  at::NoGradGuard no_grad;
  const bool training = model.is_training();
  model.eval();
  const Traits traits = model.traits();
  const int64_t context = model.size().context;
  const bool blocks = options.mode == "blocks" || (options.mode == "auto" && (!traits.streams || traits.context > 0));
  Scores out;
  const int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  // Windows do not overlap where the text allows it, so that the error bar means something.
  const auto windows_of = [&](int64_t length) {
    if (options.windows > 0) return options.windows;
    return std::max<int64_t>(1, std::min(options.tokens / length, static_cast<int64_t>(text.size()) / (length + 1)));
  };
  if (const auto fit = static_cast<int64_t>(text.size()) / (longest + 1); options.windows > fit) {
    fail("[eval.windows] expected at most ", fit, ", as many of ", longest,
         " bytes as the text holds side by side; found ", options.windows);
  }
  double work = 0, done = 0;
  for (const int64_t length : options.lengths) work += static_cast<double>(windows_of(length) * length);
  const auto read = [&](int64_t bytes) {
    done += static_cast<double>(bytes);
    if (options.progress) options.progress(std::min(1.0, done / work));
  };
  for (const int64_t length : options.lengths) {
    // Of windows that end together the longest decides where.
    const int64_t reach = options.windows > 0 ? longest : length;
    const auto room = static_cast<int64_t>(text.size()) - (reach + 1);
    const int64_t windows = windows_of(length);
    std::vector<int64_t> starts;
    for (int64_t w = 0; w < windows; ++w) {
      starts.push_back((windows > 1 ? room / (windows - 1) * w : 0) + reach - length);
    }
    auto ranges = ranges_of(length);
    const size_t by_position = ranges.size();
    const int64_t last = std::min(options.last, length);
    if (last > 0) ranges.emplace_back(length - last, length);
    const int64_t lanes = std::min({windows, options.lanes, std::max<int64_t>(1, options.tokens / length)});
    reset_peak();
    const int64_t before = resident_bytes();
    const auto began = std::chrono::steady_clock::now();
    LengthScore result;
    std::vector<Tensor> rows;
    for (int64_t w = 0; w < windows; w += lanes) {
      const std::vector<int64_t> some(starts.begin() + w, starts.begin() + std::min(w + lanes, windows));
      SessionOptions mine = options.session;
      mine.lanes = static_cast<int64_t>(some.size());
      mine.memory_limit *= mine.lanes, mine.chunk = options.chunk;
      std::optional<Session> own;
      if (options.from) {
        own.emplace(*options.from);
      } else if (traits.streams) {
        own.emplace(model, mine);
      }
      rows.push_back(window_bits(model, own ? &*own : nullptr, text, some, ranges, length, blocks ? context : 0,
                                 options.chunk, result, read));
      result.policy = own ? own->policy() : "whole blocks: nothing is kept";
      if (own && options.end) options.end(*own);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const Tensor sums = at::cat(rows);  // [windows, ranges]
    result.each = mean_each(sums.narrow(1, 0, static_cast<int64_t>(by_position)).sum(1), length);
    std::tie(result.bits, result.error) = mean_and_error(result.each);
    if (last > 0) result.last_bits = mean_each(sums.select(1, static_cast<int64_t>(by_position)), last);
    result.length = length;
    result.tokens = windows * length;
    result.mode = blocks ? kinfolk::text("blocks of ", context) : "stream";
    result.tokens_per_second = static_cast<double>(result.tokens) / seconds;
    result.peak_growth = std::max<int64_t>(0, peak_resident_bytes() - before);
    out.lengths.push_back(result);
    if (length == longest) {
      out.positions.clear();
      for (size_t r = 0; r < by_position; ++r) {
        const auto [from, to] = ranges[r];
        const auto [bits, error] = mean_and_error(mean_each(sums.select(1, static_cast<int64_t>(r)), to - from));
        out.positions.push_back({from, to, bits, error});
      }
    }
  }
  model.train(training);
  return out;
}

}  // namespace kinfolk
