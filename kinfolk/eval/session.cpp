#include "kinfolk/eval/session.h"

#include <algorithm>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/retrieve/retriever.h"

namespace kinfolk {
namespace {

constexpr int64_t kToken = sizeof(int64_t);  // bytes of a token in the history

/// Scores [B, V] after the last valid token of each lane, `before` where there is none; `valid` undefined: all are.
Tensor last_scores(const Tensor& scores, const Tensor& valid, const Tensor& before) {
  if (!valid.defined()) return scores.select(1, -1).clone();  // a view would hold those of the whole call
  const Tensor columns = at::arange(valid.size(1), valid.options().dtype(at::kLong)).expand_as(valid);
  const Tensor last = std::get<0>(columns.masked_fill(valid.logical_not(), -1).max(1));  // [B]
  const Tensor now = scores.gather(1, last.clamp_min(0).view({-1, 1, 1}).expand({-1, 1, scores.size(2)})).squeeze(1);
  return before.defined() ? at::where(last.ge(0).unsqueeze(1), now, before) : now;
}

}  // namespace

Session::Session(Model& model, SessionOptions options)
    : model_(&model), options_(std::move(options)), traits_(model.traits()) {
  if (options_.lanes < 1) refuse("[session.lanes] expected at least 1; found ", options_.lanes);
  if (options_.chunk < 1) refuse("[session.chunk] expected at least 1; found ", options_.chunk);
  if (options_.memory_limit < 0) refuse("[memory_limit] expected at least 0 bytes; found ", options_.memory_limit);
  if (const auto& at = options_.at_limit; at != "drop" && at != "refeed" && at != "stop") {
    refuse("[at_limit] expected drop, refeed or stop; found ", at);
  }
  if (!traits_.streams) {
    refuse("[session] expected a member that streams; found one that does not: ", traits_.why_not);
  }
  plan();
  reset();
}

/// How many keys, or tokens, the limits allow.
void Session::plan() {
  const int64_t lanes = options_.lanes, limit = options_.memory_limit;
  const int64_t ends = traits_.context > 0 ? traits_.context : INT64_MAX;
  const bool drops = options_.at_limit == "drop", stops = options_.at_limit == "stop";
  const auto needs = [&](int64_t keys) {  // with the tokens that a fresh state may be made from
    const int64_t least = std::min(keys, ends), tokens = stops ? 0 : !drops ? least : ends == INT64_MAX ? 0 : ends;
    return model_->most_bytes(lanes, least) + lanes * tokens * kToken;
  };
  const auto words = [&](int64_t bytes) {
    return lanes == 1 ? text(bytes, " bytes") : text(bytes, " bytes, ", bytes / lanes, " a lane");
  };
  newest_ = 0, capacity_ = ends;
  most_ = model_->most_bytes(lanes);
  const bool grows = most_ < 0;
  if (limit > 0 && grows) {
    if (model_->most_bytes(lanes, 1) < 0) {
      fail("[memory_limit] expected a member that can leave out its oldest keys; found ", model_->recipe().name,
           ", whose state grows with the text whatever is kept, and a limit of ", limit);
    }
    if (needs(1) > limit) {
      fail("[memory_limit] expected at least ", words(needs(1)), ", the state of one token; found ", words(limit));
    }
    int64_t low = 1, high = 2;
    while (needs(high) <= limit && high < ends) low = high, high *= 2;
    while (low + 1 < high) (needs((low + high) / 2) <= limit ? low : high) = (low + high) / 2;
    if (needs(high) <= limit) low = ends;
    most_ = needs(low);
    if (!drops) capacity_ = low;
    if (drops && low < ends) newest_ = low;
  } else if (ends != INT64_MAX) {
    most_ = needs(ends);
  }
  if (limit > 0 && most_ > limit) {
    fail("[memory_limit] expected at least ", words(most_), ", the state of ", model_->recipe().name,
         " whatever it reads; found ", words(limit));
  }
}

int64_t Session::position(int64_t lane) const {
  if (lane < 0 || lane >= lanes()) fail("[session] expected a lane from 0 to ", lanes() - 1, "; found ", lane);
  return dropped_[static_cast<size_t>(lane)] + state_.tensors.at("seen")[lane].item<int64_t>();
}

int64_t Session::history_bytes() const {
  size_t tokens = 0;
  for (const auto& lane : history_) tokens += lane.capacity();
  return static_cast<int64_t>(tokens) * kToken;
}

int64_t Session::bytes() const { return state_.held_bytes() + history_bytes(); }

int64_t Session::room() const { return capacity_ == INT64_MAX ? INT64_MAX : capacity_ - used_; }

Tensor Session::call(const Tensor& tokens, const Facts& facts) {
  const Tensor scores = model_->score({tokens, facts}, &state_, options_.seed, newest_);  // [B, n, V]
  const auto valid = facts.find("valid");
  if (capacity_ != INT64_MAX) {
    used_ = valid == facts.end() ? used_ + tokens.size(1) : state_.tensors.at("seen").max().item<int64_t>();
  }
  return scores;
}

void Session::remember(const Tensor& tokens, const Tensor& valid) {
  if (capacity_ == INT64_MAX || options_.at_limit == "stop") return;
  const auto half = static_cast<size_t>(capacity_ / 2);
  for (int64_t lane = 0; lane < lanes(); ++lane) {
    auto& kept = history_[static_cast<size_t>(lane)];
    for (int64_t column = 0; column < tokens.size(1); ++column) {
      if (valid.defined() && !valid[lane][column].item<bool>()) continue;
      if (kept.size() == static_cast<size_t>(capacity_)) {
        kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(half));
      }
      if (kept.size() == kept.capacity()) {
        kept.reserve(std::min(2 * kept.size() + 16, static_cast<size_t>(capacity_)));
      }
      kept.push_back(tokens[lane][column].item<int64_t>());
    }
  }
}

void Session::note_recent(const Tensor& tokens, const Tensor& valid) {
  for (int64_t lane = 0; lane < lanes(); ++lane) {
    auto& kept = recent_[static_cast<size_t>(lane)];
    Tensor row = tokens[lane];
    if (valid.defined()) row = row.masked_select(valid[lane]);
    const int64_t n = std::min(row.numel(), keep_recent_);
    row = row.narrow(0, row.numel() - n, n).cpu().contiguous();
    kept.insert(kept.end(), row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + n);
    if (kept.size() > 2 * static_cast<size_t>(keep_recent_)) kept.erase(kept.begin(), kept.end() - keep_recent_);
  }
}

void Session::keep_recent(int64_t tokens) {
  if (tokens < 0) refuse("[session.recent] expected at least 0 tokens; found ", tokens);
  for (int64_t lane = 0; lane < lanes(); ++lane) {
    const auto known = static_cast<int64_t>(recent(lane).size());
    if (const int64_t read = position(lane); known < std::min(tokens, read)) {
      refuse("[session.recent] expected at most ", known, " of the newest tokens, which it holds of the ", read,
             " that it has read; found ", tokens);
    }
  }
  keep_recent_ = std::max(keep_recent_, tokens);
}

int64_t Session::skip(const Tensor& tokens) {
  if (capacity_ == INT64_MAX || options_.at_limit == "stop" || tokens.size(1) <= room()) return 0;
  // A fresh state is made where the room ends, and again after each `rest` tokens, as long as more come.
  const int64_t half = capacity_ / 2, rest = capacity_ - half, beyond = tokens.size(1) - room();
  const int64_t fresh = (beyond + rest - 1) / rest, skipped = room() + (fresh - 1) * rest - half;
  if (skipped <= 0) return 0;  // the last fresh state is made from what was read before, too
  note_recent(tokens.narrow(1, 0, skipped), {});
  for (int64_t lane = 0; lane < lanes(); ++lane) {
    dropped_[static_cast<size_t>(lane)] = position(lane) + skipped;
    history_[static_cast<size_t>(lane)].clear();
  }
  state_ = {};  // before the new one: both together would be more than the limit
  state_ = model_->start(lanes());
  used_ = 0;
  refeeds_ += fresh;
  return skipped;
}

/// A fresh state from the newest half of each lane's tokens.
void Session::refeed() {
  const auto half = static_cast<size_t>(capacity_ / 2);
  size_t longest = 0;
  std::vector<int64_t> positions;
  for (int64_t lane = 0; lane < lanes(); ++lane) {
    auto& kept = history_[static_cast<size_t>(lane)];
    if (kept.size() > half) kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(half));
    longest = std::max(longest, kept.size());
    positions.push_back(position(lane));
  }
  const auto width = static_cast<int64_t>(longest);
  Tensor tokens = at::zeros({lanes(), width}, at::kLong), valid = at::zeros({lanes(), width}, at::kBool);
  for (int64_t lane = 0; lane < lanes(); ++lane) {
    const auto& kept = history_[static_cast<size_t>(lane)];
    const auto count = static_cast<int64_t>(kept.size());
    if (count == 0) continue;
    tokens[lane].narrow(0, width - count, count).copy_(at::tensor(kept, at::kLong));
    valid[lane].narrow(0, width - count, count).fill_(true);
    dropped_[static_cast<size_t>(lane)] = positions[static_cast<size_t>(lane)] - count;
  }
  state_ = {};  // before the new one: both together would be more than the limit
  state_ = model_->start(lanes());
  used_ = 0;
  const bool whole = valid.all().item<bool>();
  for (int64_t at = 0; at < width; at += options_.chunk) {
    const int64_t n = std::min(options_.chunk, width - at);
    call(tokens.narrow(1, at, n), whole ? Facts{} : Facts{{"valid", valid.narrow(1, at, n)}});
  }
  ++refeeds_;
}

Tensor Session::feed(const Tensor& tokens, const Visit& visit, const Facts& facts) {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong || tokens.size(0) != lanes()) {
    fail("[session.feed] expected tokens int64 [", lanes(), ", L]; found ", tokens.scalar_type(), " ", tokens.sizes());
  }
  const int64_t length = tokens.size(1);
  if (length > 0) {
    const int64_t highest = tokens.max().item<int64_t>(), lowest = tokens.min().item<int64_t>();
    if (lowest < 0 || highest >= model_->size().vocabulary) {
      fail("[session.feed] expected tokens from 0 to ", model_->size().vocabulary - 1, "; found ",
           lowest < 0 ? lowest : highest);
    }
  }
  if (facts.count("lengths")) fail("[session.feed] expected the fact valid; found lengths");
  // Scores of tokens that are read again go nowhere, so what a head may find at their places does not matter.
  if (capacity_ != INT64_MAX && options_.at_limit != "stop" &&
      facts.size() > facts.count("valid") + facts.count(kPlace)) {
    fail("[session.feed] expected no facts but valid and place where a fresh state may be made from tokens; found ",
         "others");
  }
  for (int64_t at = 0; at < length;) {
    if (room() == 0) {
      if (options_.at_limit == "stop") {
        fail("[session.feed] expected at most ", capacity_, " tokens, where it is to stop; found more");
      }
      refeed();
    }
    const int64_t n = std::min({options_.chunk, length - at, room()});
    Facts some;
    for (const auto& [name, fact] : facts) {
      some[name] = fact.dim() == 2 && fact.sizes() == tokens.sizes() ? fact.narrow(1, at, n) : fact;
    }
    const Tensor piece = tokens.narrow(1, at, n), valid = some.count("valid") ? some.at("valid") : Tensor();
    const Tensor scores = call(piece, some);  // [B, n, V]
    remember(piece, valid);
    note_recent(piece, valid);
    scores_ = last_scores(scores, valid, scores_);
    if (visit && !visit(scores, at)) return {};
    at += n;
  }
  return scores_;
}

void Session::truncate(int64_t position, int64_t lane) {
  if (lane < -1) fail("[session] expected a lane, or -1 for all; found ", lane);
  Session next = *this;  // whole, or not at all
  for (int64_t b = lane < 0 ? 0 : lane; b < (lane < 0 ? lanes() : lane + 1); ++b) {
    const int64_t read = this->position(b), before = dropped_[static_cast<size_t>(b)];
    if (position < 0 || position > read) {
      fail("[session.truncate] expected a position from 0 to ", read, ", which lane ", b, " has read; found ",
           position);
    }
    if (position == 0) {
      next.reset(b);
      continue;
    }
    if (position == read) continue;
    if (position <= before) {
      fail("[session.truncate] expected a position above ", before, ", where its state was made anew; found ",
           position);
    }
    const std::string why = model_->truncate(next.state_, b, position - before, newest_);
    if (!why.empty()) {
      fail("[session.truncate] expected a state that can go back to position ", position,
           "; found one that cannot: ", why, " (a copy of the session made there can)");
    }
    auto& kept = next.history_[static_cast<size_t>(b)];
    kept.resize(kept.size() - std::min(kept.size(), static_cast<size_t>(read - position)));
    auto& recent = next.recent_[static_cast<size_t>(b)];
    recent.resize(recent.size() - std::min(recent.size(), static_cast<size_t>(read - position)));
    next.scores_ = Tensor();
  }
  next.used_ = next.capacity_ == INT64_MAX ? 0 : next.state_.tensors.at("seen").max().item<int64_t>();
  *this = std::move(next);
}

void Session::reset(int64_t lane) {
  if (lane < -1 || lane >= lanes()) {
    fail("[session] expected a lane from 0 to ", lanes() - 1, ", or -1 for all; found ", lane);
  }
  if (lane < 0) {
    state_ = model_->start(lanes());
    history_.assign(static_cast<size_t>(lanes()), {});
    recent_.assign(static_cast<size_t>(lanes()), {});
    dropped_.assign(static_cast<size_t>(lanes()), 0);
    scores_ = Tensor();
    used_ = 0;
    return;
  }
  state_.put_lane(lane, model_->start(1));
  history_[static_cast<size_t>(lane)] = std::vector<int64_t>();
  recent_[static_cast<size_t>(lane)].clear();
  dropped_[static_cast<size_t>(lane)] = 0;
  scores_ = Tensor();
  if (capacity_ != INT64_MAX) used_ = state_.tensors.at("seen").max().item<int64_t>();
}

void Session::select(const Tensor& lanes) {
  Session next = *this;
  next.options_.lanes = lanes.numel();
  next.plan();
  next.state_.select(lanes);
  next.history_.clear(), next.recent_.clear(), next.dropped_.clear();
  for (int64_t n = 0; n < lanes.numel(); ++n) {
    const auto from = static_cast<size_t>(lanes[n].item<int64_t>());
    next.history_.push_back(history_.at(from));
    next.recent_.push_back(recent_.at(from));
    next.dropped_.push_back(dropped_.at(from));
  }
  if (next.scores_.defined()) next.scores_ = next.scores_.index_select(0, lanes);
  if (options_.memory_limit > 0 && next.bytes() > options_.memory_limit) {
    fail("[memory_limit] expected at least ", next.bytes(), " bytes, the state of ", lanes.numel(), " lanes; found ",
         options_.memory_limit);
  }
  *this = std::move(next);
}

std::string Session::policy() const {
  std::string out = model_->keeps();
  if (newest_ > 0) out += text("; at the memory limit the newest ", newest_, " keys are kept and older ones dropped");
  if (capacity_ != INT64_MAX) {
    out += text(capacity_ == traits_.context ? "; positions end at " : "; memory ends at ", capacity_, " tokens: ",
                options_.at_limit == "stop" ? "then it stops" : "then a fresh state is made from the newest half");
  } else if (newest_ == 0) {
    out += most_ < 0 ? "; grows: no limit was set" : "; constant";
  }
  return out;
}

}  // namespace kinfolk
