// Which tokens meet: the groups of LSH and of routing.
#include <cmath>
#include <numeric>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/ops/attend_groups.h"

namespace kinfolk {
namespace {

using kernels::KeyGroup;

void begin_plan(GroupPlan& plan, at::IntArrayRef sizes, int64_t length, const Sequences& sequences) {
  if (length > INT32_MAX / 64) fail("[attend_groups] expected fewer than 2^25 tokens; found ", length);
  if (static_cast<int64_t>(sequences.size()) != sizes[0]) {
    fail("[attend_groups] expected sequences of ", sizes[0], " lanes; found ", sequences.size());
  }
  plan.batch = sizes[0], plan.heads = sizes[1], plan.length = length;
  plan.each.assign(static_cast<size_t>(plan.batch * plan.heads), {});
}

/// Calls fill(groups, lane's sequences, lane and head) for each lane and head.
template <class F>
void fill_each(GroupPlan& plan, const Sequences& sequences, const F& fill) {
  parallel_for(0, plan.batch * plan.heads, 1, [&](int64_t from, int64_t until) {
    for (int64_t i = from; i < until; ++i) {
      fill(plan.each[static_cast<size_t>(i)], sequences[static_cast<size_t>(i / plan.heads)], i);
    }
  });
}

/// tokens in the order of their codes, stable.
void sort_by_code(const std::vector<int32_t>& tokens, const int64_t* code, std::vector<int32_t>& out) {
  out.resize(tokens.size());
  int64_t codes = 0;
  for (const int32_t t : tokens) {
    if (code[t] < 0) fail("[attend_groups] expected codes of at least 0; found ", code[t]);
    codes = std::max(codes, code[t] + 1);
  }
  if (codes > 4 * static_cast<int64_t>(tokens.size()) + 1024) {
    out = tokens;
    std::stable_sort(out.begin(), out.end(), [&](int32_t a, int32_t b) { return code[a] < code[b]; });
    return;
  }
  std::vector<int32_t> next(static_cast<size_t>(codes) + 1);
  for (const int32_t t : tokens) ++next[static_cast<size_t>(code[t]) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (const int32_t t : tokens) out[static_cast<size_t>(next[static_cast<size_t>(code[t])]++)] = t;
}

/// The tokens whose code is that of one from `asks` on.
std::vector<int32_t> of_asked_codes(const std::vector<int32_t>& tokens, const int64_t* code, int64_t asks) {
  int64_t most = -1;
  for (const int32_t t : tokens)
    if (t >= asks) most = std::max(most, code[t]);
  std::vector<char> asked(static_cast<size_t>(most + 1), 0);
  for (const int32_t t : tokens)
    if (t >= asks) asked[static_cast<size_t>(code[t])] = 1;
  std::vector<int32_t> out;
  for (const int32_t t : tokens)
    if (code[t] <= most && asked[static_cast<size_t>(code[t])]) out.push_back(t);
  return out;
}

/// The groups of one sequence and round, appended. Returns the first of them and the number of chunks.
std::pair<int32_t, int64_t> cut_round(TokenGroups& out, const std::vector<int32_t>& sorted, const int64_t* code,
                                      const Cut& cut, int32_t round, int64_t length, int64_t asks) {
  const auto first = static_cast<int32_t>(out.groups.size());
  const auto n = static_cast<int64_t>(sorted.size());
  int64_t chunk = -1, in_chunk = cut.chunk, chunks = 0;
  for (int64_t p = 0; p < n; ++p) {
    const int32_t token = sorted[static_cast<size_t>(p)];
    const bool another = p == 0 || code[token] != code[sorted[static_cast<size_t>(p) - 1]];
    const bool opens = in_chunk == cut.chunk || (cut.by_code && another);
    if (opens) ++chunk, ++chunks, in_chunk = 0;
    if (opens || (cut.same && another)) {
      const auto entry = static_cast<int32_t>(out.key.size());
      // Only a new chunk of the same code has keys of that code in the one before.
      const bool goes_on = p > 0 && opens && (!another || !cut.same) && !(cut.by_code && another);
      const auto before = goes_on ? static_cast<int32_t>(out.groups.size()) - 1 : -1;
      const auto query = static_cast<int32_t>(out.query.size());
      out.groups.push_back({.query = query, .key = entry, .before = before, .round = round});
    }
    ++in_chunk;
    KeyGroup& group = out.groups.back();
    ++group.keys;
    if (token >= asks) {
      ++group.queries;
      out.query.push_back(token);
      out.slot.push_back(static_cast<int32_t>(token - asks));
    }
    out.of[static_cast<size_t>(round * length + token)] = static_cast<int32_t>(out.groups.size()) - 1;
    out.key.push_back(token);
  }
  return {first, chunks};
}

/// The first `count` of `tokens` by affinity, of equal ones the earlier, in order of tokens.
template <class T>
class BestTokens {
 public:
  void append(const std::vector<int32_t>& tokens, int64_t count, const T* affinity, std::vector<int32_t>& out) {
    if (count >= static_cast<int64_t>(tokens.size())) {
      out.insert(out.end(), tokens.begin(), tokens.end());
      return;
    }
    const Entry last = last_of(tokens, count, affinity);
    for (const int32_t t : tokens)
      if (!better(last, {affinity[t], t})) out.push_back(t);
  }

 private:
  struct Entry {
    T value;
    int32_t token;
  };
  static bool better(const Entry& a, const Entry& b) {
    return a.value != b.value ? a.value > b.value : a.token < b.token;
  }

  /// The worst that is taken. Values are counted in ranges of equal width, and only those in its range are ordered.
  Entry last_of(const std::vector<int32_t>& tokens, int64_t count, const T* affinity) {
    constexpr int64_t kRanges = 1024;
    T low = affinity[tokens[0]], high = low;
    for (const int32_t t : tokens) low = std::min(low, affinity[t]), high = std::max(high, affinity[t]);
    const T width = high - low;
    const T scale = width > 0 && std::isfinite(width) ? static_cast<T>(kRanges - 1) / width : 0;
    const auto range = [&](T value) {  // grows with the value
      return static_cast<int64_t>(std::min(std::max(T(0), (value - low) * scale), static_cast<T>(kRanges - 1)));
    };
    counts_.assign(kRanges, 0);
    for (const int32_t t : tokens) ++counts_[static_cast<size_t>(range(affinity[t]))];
    int64_t at = kRanges - 1, left = count;
    while (left > counts_[static_cast<size_t>(at)]) left -= counts_[static_cast<size_t>(at--)];
    within_.clear();
    for (const int32_t t : tokens)
      if (range(affinity[t]) == at) within_.push_back({affinity[t], t});
    std::nth_element(within_.begin(), within_.begin() + (left - 1), within_.end(), better);
    return within_[static_cast<size_t>(left - 1)];
  }

  std::vector<int64_t> counts_;
  std::vector<Entry> within_;
};

/// The groups of one lane and head; affinities [K, L].
template <class T>
void fill_top(TokenGroups& out, const std::vector<std::vector<int32_t>>& lane, const Tensor& of_queries,
              const Tensor& of_keys, bool shared, int64_t top) {
  const int64_t K = of_queries.size(0), L = of_queries.size(1);
  const T *queries = of_queries.const_data_ptr<T>(), *keys = of_keys.const_data_ptr<T>();
  BestTokens<T> best;
  for (const auto& tokens : lane) {
    const auto n = static_cast<int64_t>(tokens.size());
    const int64_t w = std::min(n, top > 0 ? top : (n + K - 1) / K);
    for (int64_t c = 0; c < K; ++c) {
      const auto query = static_cast<int32_t>(out.query.size()), key = static_cast<int32_t>(out.key.size());
      best.append(tokens, w, queries + c * L, out.query);
      if (shared) {
        out.key.insert(out.key.end(), out.query.begin() + query, out.query.end());
      } else {
        best.append(tokens, w, keys + c * L, out.key);
      }
      const auto since = [](const auto& list, int32_t first) { return static_cast<int32_t>(list.size()) - first; };
      out.groups.push_back({query, since(out.query, query), key, since(out.key, key)});
    }
  }
}

}  // namespace

Sequences sequences_of(int64_t batch, int64_t length, const Tensor& valid, const Tensor& document) {
  const Tensor real = valid.defined() ? valid.to(at::kCPU).contiguous() : Tensor();
  const Tensor number = document.defined() ? document.to(at::kCPU).contiguous() : Tensor();
  const bool* is_real = real.defined() ? real.const_data_ptr<bool>() : nullptr;
  const int64_t* numbers = number.defined() ? number.const_data_ptr<int64_t>() : nullptr;
  Sequences out(static_cast<size_t>(batch));
  for (int64_t b = 0; b < batch; ++b) {
    auto& lane = out[static_cast<size_t>(b)];
    int64_t last = 0;
    for (int64_t t = 0; t < length; ++t) {
      if (is_real && !is_real[b * length + t]) continue;
      const int64_t mine = numbers ? numbers[b * length + t] : 0;
      if (lane.empty() || mine != last) lane.emplace_back();
      last = mine;
      lane.back().push_back(static_cast<int32_t>(t));
    }
  }
  return out;
}

void sort_groups(const Tensor& given, const Sequences& sequences, const Cut& cut, GroupPlan& plan) {
  if (given.dim() != 4 || given.scalar_type() != at::kLong) {
    fail("[attend_groups.code] expected int64 [B, H, R, L]; found ", given.scalar_type(), " ", given.sizes());
  }
  if (cut.chunk < 1) fail("[attend_groups.chunk] expected at least 1; found ", cut.chunk);
  if (given.size(2) < 1 || given.size(2) > 16) {
    fail("[attend_groups.rounds] expected 1 to 16; found ", given.size(2));
  }
  if (cut.by_code && (!cut.same || cut.wrap != Cut::Wrap::none)) {
    fail("[attend_groups] expected chunks within a code to meet that code alone, and no wrap");
  }
  if (plan.first < 0 || plan.first > given.size(3) || (plan.first > 0 && !cut.by_code)) {
    fail("[attend_groups.first] expected at most the tokens ", given.size(3), ", and 0 unless chunks are counted ",
         "within a code; found ", plan.first);
  }
  const Tensor code = given.to(at::kCPU).contiguous();
  const int64_t R = code.size(2), L = code.size(3);
  begin_plan(plan, code.sizes(), L, sequences);
  plan.rounds = R, plan.slots = L - plan.first;
  const int64_t* codes = code.const_data_ptr<int64_t>();
  // Codes of different rounds are never the same, so that with `same` only the across-the-codes form meets other
  // rounds.
  const bool to_others = cut.wrap == Cut::Wrap::all && R > 1;
  plan.across = to_others && !cut.same;
  fill_each(plan, sequences, [&](TokenGroups& out, const auto& lane, int64_t i) {
    out.of.assign(static_cast<size_t>(R * L), -1);
    std::vector<int32_t> sorted;
    for (const auto& tokens : lane) {
      std::vector<int32_t> firsts, lasts;
      for (int64_t r = 0; r < R; ++r) {
        const int64_t* mine = codes + (i * R + r) * L;
        if (plan.first > 0) {
          sort_by_code(of_asked_codes(tokens, mine, plan.first), mine, sorted);
          if (sorted.empty()) continue;
        } else {
          sort_by_code(tokens, mine, sorted);
        }
        const auto [first, chunks] = cut_round(out, sorted, mine, cut, static_cast<int32_t>(r), L, plan.first);
        const auto last = static_cast<int32_t>(out.groups.size()) - 1;
        firsts.push_back(first), lasts.push_back(last);
        const bool alike = !cut.same || mine[sorted.front()] == mine[sorted.back()];
        if (cut.wrap != Cut::Wrap::none && !to_others && chunks > 1 && alike) {
          out.groups[static_cast<size_t>(first)].before = last;
        }
      }
      for (size_t r = 0; r < firsts.size() && plan.across; ++r) {
        out.groups[static_cast<size_t>(firsts[r])].before = lasts[(r + firsts.size() - 1) % firsts.size()];
      }
    }
  });
}

void top_groups(const Tensor& of_queries, const Tensor& of_keys, const Sequences& sequences, int64_t top,
                GroupPlan& plan) {
  if (of_queries.dim() != 4 || of_queries.sizes() != of_keys.sizes()) {
    fail("[attend_groups] expected affinities [B, H, K, L] of queries and of keys; found ", of_queries.sizes(), " and ",
         of_keys.sizes());
  }
  if (top < 0) fail("[attend_groups.top] expected at least 0; found ", top);
  const int64_t L = of_queries.size(3);
  begin_plan(plan, of_queries.sizes(), L, sequences);
  plan.rounds = 1;
  const bool shared = of_queries.is_same(of_keys);
  const bool single = of_queries.scalar_type() == at::kFloat && of_keys.scalar_type() == at::kFloat;
  fill_each(plan, sequences, [&](TokenGroups& out, const auto& lane, int64_t i) {
    const auto one = [&](const Tensor& all) {
      return all[i / plan.heads][i % plan.heads].to(at::kCPU, single ? at::kFloat : at::kDouble).contiguous();
    };
    const Tensor a = one(of_queries), b = shared ? a : one(of_keys);
    if (single) {
      fill_top<float>(out, lane, a, b, shared, top);
    } else {
      fill_top<double>(out, lane, a, b, shared, top);
    }
    out.token_of = out.query;
    out.slot.resize(out.query.size());
    std::iota(out.slot.begin(), out.slot.end(), 0);
  });
  plan.slots = 0;
  for (const auto& one : plan.each) plan.slots = std::max(plan.slots, static_cast<int64_t>(one.slot.size()));
}

Tensor combine_groups(const Tensor& read, const GroupPlan& plan, bool mean) {
  const int64_t B = plan.batch, H = plan.heads, S = plan.slots, L = plan.length, e = read.size(3);
  const auto whole = at::TensorOptions().dtype(at::kLong);
  Tensor token = at::full({B, H, S}, L, whole), count = at::zeros({B, H, L}, whole);
  int64_t *tokens = token.mutable_data_ptr<int64_t>(), *counts = count.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < B * H; ++i) {
    const auto& of = plan.each[static_cast<size_t>(i)].token_of;
    for (size_t s = 0; s < of.size(); ++s) {
      tokens[i * S + static_cast<int64_t>(s)] = of[s];
      ++counts[i * L + of[s]];
    }
  }
  // Rows of one table: a row is then added as it lies.
  token += (at::arange(B * H, whole) * (L + 1)).view({B, H, 1});
  const Tensor index = token.view({-1, 1}).to(read.device()).expand({B * H * S, e});
  const Tensor sum = at::zeros({B * H * (L + 1), e}, read.options())
                         .scatter_add(0, index, read.reshape({-1, e}))
                         .view({B, H, L + 1, e})
                         .narrow(2, 0, L);
  if (!mean) return sum;
  return sum / count.clamp_min(1).to(read.options()).unsqueeze(-1);
}

}  // namespace kinfolk
