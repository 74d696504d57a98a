#include "kinfolk/pattern/pattern.h"

#include <algorithm>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/term.h"

namespace kinfolk {
namespace {

using Node = std::shared_ptr<const Pattern>;
using FactMap = std::map<std::string, Tensor>;

std::string bound_text(int64_t bound) {
  return bound == INT64_MIN || bound == INT64_MAX ? std::string("any") : text(bound);
}

template <class Pair>
Node pair_with(const Node& a, const Node& b, const FactMap& facts) {
  const Node new_a = a->with(facts), new_b = b->with(facts);
  if (!new_a && !new_b) return nullptr;
  return std::make_shared<Pair>(new_a ? new_a : a, new_b ? new_b : b);
}

}  // namespace

int64_t add_up(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}
int64_t times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

bool Pattern::may_see(const Stretch& queries, const Stretch& keys) const {
  if (queries.empty() || keys.empty()) return false;
  return std::max(queries.low - keys.high, nearest()) <= std::min(queries.high - keys.low, farthest());
}

Tensor Interval::sees(const Tensor& q_at, const Tensor& k_at) const {
  const Tensor distance = q_at - k_at;
  if (nearest_ == INT64_MIN && farthest_ == INT64_MAX) return at::ones_like(distance, at::kBool);
  if (nearest_ == INT64_MIN) return distance.le(farthest_);
  if (farthest_ == INT64_MAX) return distance.ge(nearest_);
  return distance.ge(nearest_).logical_and_(distance.le(farthest_));
}

std::string Interval::text() const {
  if (!text_.empty()) return text_;
  return kinfolk::text("distance(", bound_text(nearest_), ", ", bound_text(farthest_), ")");
}

bool Term::may_see(const Stretch& queries, const Stretch& keys) const {
  if (!Pattern::may_see(queries, keys)) return false;
  std::vector<Stretch> found;
  for (int64_t lane = 0; lane < lanes(); ++lane) {
    int64_t last = 0;
    for (int64_t i = std::max<int64_t>(queries.low, 0); i <= queries.high; ++i) {
      const int64_t mine = group(lane, i);
      if (i > queries.low && mine == last) continue;
      last = mine;
      this->keys(lane, mine, std::max<int64_t>(keys.low, 0), keys.high, found);
      if (!found.empty()) return true;
    }
  }
  return false;
}

Tensor Term::sees(const Tensor& q_at, const Tensor& k_at) const {
  const auto pair = at::broadcast_tensors({q_at.cpu(), k_at.cpu()});
  const Tensor q = pair[0].contiguous(), k = pair[1].contiguous();
  Tensor out = at::zeros(q.sizes(), at::kBool);
  const auto* queries = q.const_data_ptr<int64_t>();
  const auto* keys = k.const_data_ptr<int64_t>();
  bool* seen = out.data_ptr<bool>();
  const int64_t a_lane = lanes() > 1 ? q.numel() / q.size(0) : std::max<int64_t>(q.numel(), 1);
  int64_t last = -1, mine = 0;
  for (int64_t n = 0; n < q.numel(); ++n) {
    if (queries[n] < 0 || keys[n] < 0) continue;
    if (queries[n] != last || lanes() > 1) mine = group(n / a_lane, queries[n]), last = queries[n];
    seen[n] = has(n / a_lane, mine, keys[n]);
  }
  return out.to(q_at.device());
}

Tensor Both::sees(const Tensor& q_at, const Tensor& k_at) const {
  return a->sees(q_at, k_at).logical_and(b->sees(q_at, k_at));
}
bool Both::may_see(const Stretch& queries, const Stretch& keys) const {
  return Pattern::may_see(queries, keys) && a->may_see(queries, keys) && b->may_see(queries, keys);
}
Node Both::with(const FactMap& facts) const { return pair_with<Both>(a, b, facts); }
std::string Both::text() const {
  const auto factor = [](const Pattern& part) {
    return dynamic_cast<const Either*>(&part) ? "(" + part.text() + ")" : part.text();
  };
  return factor(*a) + " & " + factor(*b);
}

Tensor Either::sees(const Tensor& q_at, const Tensor& k_at) const {
  return a->sees(q_at, k_at).logical_or(b->sees(q_at, k_at));
}
/// Two intervals without a gap between them are one.
bool Either::interval() const {
  return a->interval() && b->interval() && a->nearest() <= a->farthest() && b->nearest() <= b->farthest() &&
         (a->farthest() == INT64_MAX || b->nearest() <= a->farthest() + 1) &&
         (b->farthest() == INT64_MAX || a->nearest() <= b->farthest() + 1);
}
bool Either::may_see(const Stretch& queries, const Stretch& keys) const {
  return a->may_see(queries, keys) || b->may_see(queries, keys);
}
Node Either::with(const FactMap& facts) const { return pair_with<Either>(a, b, facts); }

Node Named::with(const FactMap& facts) const {
  const Node filled = inner->with(facts);
  return filled ? std::make_shared<Named>(name_, filled) : nullptr;
}

Node fill_in(const Node& pattern, const FactMap& facts, int64_t lanes) {
  const Node filled = pattern->with(facts);
  for (const char* name : {"prefix", "global"}) {
    const auto fact = facts.find(name);
    if (filled && lanes >= 0 && fact != facts.end() && fact->second.size(0) != lanes) {
      fail("[pattern] expected the fact \"", name, "\" for ", lanes, " lanes; found ", fact->second.sizes());
    }
  }
  return filled ? filled : pattern;
}

}  // namespace kinfolk
