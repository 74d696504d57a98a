#include "kinfolk/ops/attend_views.h"

#include <map>
#include <unordered_map>

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/attend_layout.h"
#include "kinfolk/ops/attend_pairs.h"
#include "kinfolk/pattern/views.h"

namespace kinfolk {
namespace {

/// Where the key of a position is, in one lane of one set.
class Finder {
 public:
  Finder(const int64_t* at, int64_t length) {
    int64_t valid = 0;
    for (int64_t n = 0; n < length; ++n)
      if (at[n] >= 0) span_.add(at[n]), ++valid;
    if (span_.empty()) return;
    dense_ = span_.high - span_.low < 8 * valid + 1024;
    if (dense_) table_.assign(static_cast<size_t>(span_.high - span_.low + 1), -1);
    for (int64_t n = 0; n < length; ++n) {
      if (at[n] < 0) continue;
      int64_t& place =
          dense_ ? table_[static_cast<size_t>(at[n] - span_.low)] : map_.try_emplace(at[n], -1).first->second;
      twice_ = twice_ || place >= 0;
      place = n;
    }
  }
  const Span& span() const { return span_; }
  bool twice() const { return twice_; }  ///< a position has two keys
  int64_t find(int64_t position) const {
    if (dense_) return table_[static_cast<size_t>(position - span_.low)];
    const auto found = map_.find(position);
    return found == map_.end() ? -1 : found->second;
  }

 private:
  Span span_;
  bool dense_ = true, twice_ = false;
  std::vector<int64_t> table_;
  std::unordered_map<int64_t, int64_t> map_;
};

/// Costs are measured in products of a fused call: reading a key costs as much as some of them, a query of a group and
/// a query of a read that is joined to another as many more, and so does a call; the tiled plain path needs several
/// times as long for each (measured at width 64 in float32).
constexpr double kReadKey = 14, kRow = 280, kJoin = 40, kCall = 12000, kTiled = 4;
double work(double queries, double keys) { return (queries + kReadKey) * keys; }

/// Queries of one group and the keys of each set that they see, as rows [lane * length + index].
struct Item {
  std::vector<int64_t> queries;
  std::vector<std::vector<int64_t>> keys;
  int64_t columns() const {
    int64_t sum = 0;
    for (const auto& set : keys) sum += static_cast<int64_t>(set.size());
    return sum;
  }
  Span span;  ///< of the positions of the keys
  /// About what attend costs on it: blocks of keys beyond the bounds of distance are skipped.
  double cost(const View& view) const {
    const double rows = static_cast<double>(queries.size());
    const double all = work(rows, static_cast<double>(columns())), gathered = kRow * rows;
    if (view.nearest < -(int64_t{1} << 40) || view.farthest > int64_t{1} << 40) return gathered + all;
    const double spread = static_cast<double>(span.high - span.low + 1);
    const double blocks = 256 * spread / static_cast<double>(columns());  // what a block of keys covers
    return gathered + all * std::min(1.0, (static_cast<double>(view.farthest - view.nearest) + blocks) / spread);
  }
};

int64_t minus(int64_t a, int64_t b) {  // saturating
  int64_t out;
  if (!__builtin_sub_overflow(a, b, &out)) return out;
  return a < 0 ? INT64_MIN : INT64_MAX;
}

/// Up to the next multiple of an eighth to a quarter of x.
int64_t rounded(int64_t x) {
  int64_t unit = 1;
  while (unit * 8 <= x) unit *= 2;
  return (x + unit - 1) / unit * unit;
}

/// What is read of the positions once a call.
class Plan {
 public:
  explicit Plan(const AttendArguments& call) : call_(call), q_at_(call.q_at), batch_(call.q_at.size(0)) {
    bool alike = q_at_.alike();
    for (const Keys& set : call.keys) {
      key_at_.emplace_back(set.at);
      alike = alike && key_at_.back().alike();
    }
    lanes_ = alike ? std::min<int64_t>(batch_, 1) : batch_;
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      for (int64_t i = 0; i < length(); ++i)
        if (const int64_t at = q_at_.row(lane)[i]; at >= 0) queries_.add(at);
      finders_.emplace_back();
      for (size_t s = 0; s < key_at_.size(); ++s) {
        finders_.back().emplace_back(key_at_[s].row(lane), call.keys[s].at.size(1));
        const Finder& finder = finders_.back().back();
        twice_ = twice_ || finder.twice();
        if (!finder.span().empty()) keys_.add(finder.span());
      }
    }
  }
  bool empty() const { return queries_.empty() || keys_.empty(); }
  bool twice() const { return twice_; }
  Stretch queries() const { return {queries_.low, queries_.high}; }
  Stretch keys() const { return {keys_.low, keys_.high}; }

  std::vector<Item> items(const View& view) const {
    std::vector<Item> out;
    const int64_t lanes = view.lanes() > 1 ? batch_ : lanes_;
    for (int64_t lane = 0; lane < lanes; ++lane) of_lane(view, lane, out);
    if (lanes == 1) {  // the others are alike
      const size_t own = out.size();
      for (int64_t lane = 1; lane < batch_; ++lane)
        for (size_t n = 0; n < own; ++n) {
          Item copy = out[n];
          for (int64_t& row : copy.queries) row += lane * length();
          for (size_t s = 0; s < copy.keys.size(); ++s)
            for (int64_t& row : copy.keys[s]) row += lane * call_.keys[s].at.size(1);
          out.push_back(std::move(copy));
        }
    }
    return out;
  }
  int64_t query_at(int64_t row) const { return q_at_.row(row / length())[row % length()]; }
  int64_t key_at(size_t set, int64_t row) const {
    const int64_t n = call_.keys[set].at.size(1);
    return key_at_[set].row(row / n)[row % n];
  }

  /// About what the tiled plain path costs, for one lane.
  double tiled() const {
    double sum = 0;
    const int64_t rows = call_.plan.query_tile, few = std::max<int64_t>(1, length());
    const int64_t columns = call_.plan.key_tile * std::max<int64_t>(1, rows / few);
    const Layout layout(*call_.plan.pattern, call_.q_at, call_.q_document, call_.keys, rows, columns);
    for (int64_t block = 0; block < layout.query_blocks(); ++block)
      for (size_t s = 0; s < call_.keys.size(); ++s)
        for (int64_t b = 0; b < layout.key_blocks(s); ++b)
          if (layout.meet(block, s, b).any) {
            sum +=
                kCall / 8 + kTiled * work(static_cast<double>(std::min(rows, length() - block * rows)),
                                          static_cast<double>(std::min(columns, layout.set(s).length - b * columns)));
          }
    return sum;
  }
  /// About what a band costs, for one lane.
  double cost(const View& band) const {
    const double reach = static_cast<double>(band.farthest) - static_cast<double>(band.nearest) + 96;
    const double keys = std::min(reach, static_cast<double>(keys_.high - keys_.low + 1));
    return kCall + work(1, keys) + static_cast<double>(length()) * keys;
  }

 private:
  int64_t length() const { return call_.q_at.size(1); }

  void of_lane(const View& view, int64_t lane, std::vector<Item>& out) const {
    struct Group {
      std::vector<int64_t> queries;
      Span at;
    };
    std::map<std::vector<int64_t>, Group> groups;
    Group* last = nullptr;
    std::vector<int64_t> last_key;
    const auto& finders = finders_[lanes_ == 1 ? 0 : static_cast<size_t>(lane)];
    for (int64_t i = 0; i < length(); ++i) {
      const int64_t at = q_at_.row(lane)[i];
      if (at < 0) continue;
      auto key = view.groups(lane, at);
      if (!last || key != last_key) last = &groups[key], last_key = std::move(key);
      last->queries.push_back(lane * length() + i);
      last->at.add(at);
    }
    for (const auto& [key, group] : groups) {
      Item item{group.queries, {}, {}};
      for (size_t s = 0; s < finders.size(); ++s) {
        const Finder& finder = finders[s];
        item.keys.emplace_back();
        if (finder.span().empty()) continue;
        const int64_t low = std::max(finder.span().low, minus(group.at.low, view.farthest));
        const int64_t high = std::min(finder.span().high, minus(group.at.high, view.nearest));
        for (const int64_t position : view.keys(lane, key, low, high))
          if (const int64_t n = finder.find(position); n >= 0) {
            item.keys.back().push_back(lane * call_.keys[s].at.size(1) + n);
            item.span.add(position);
          }
      }
      if (item.columns() > 0) out.push_back(std::move(item));
    }
  }

  const AttendArguments& call_;
  HostRows q_at_;
  std::vector<HostRows> key_at_;
  int64_t batch_, lanes_ = 1;
  std::vector<std::vector<Finder>> finders_;  ///< [lanes][sets]
  Span queries_, keys_;
  bool twice_ = false;
};

/// Rows of x [B, H, L, d] as [N, H, n, d], or of int64 [B, L] as [N, n].
Tensor gathered(const Tensor& x, const Tensor& rows, int64_t n) {
  if (!x.defined()) return x;
  if (x.dim() == 2) return x.reshape({-1}).index_select(0, rows).view({-1, n});
  return x.transpose(1, 2)
      .reshape({-1, x.size(1), x.size(3)})
      .index_select(0, rows)
      .unflatten(0, {-1, n})
      .transpose(1, 2);
}

/// Items of about one size, padded to one size, as one call of attend.
class Bucket {
 public:
  Bucket(const AttendArguments& call, const Plan& plan, const View& view, std::vector<const Item*> items)
      : call_(call), plan_(plan), view_(view), items_(std::move(items)) {
    for (const View::Part& part : view.parts)
      if (part.inside) step_ = std::max(step_, part.term->step());
    // Of classes of a stride, every step-th position counted as one: distances are consecutive again.
    if (!call.plan.score.empty() || call.queries.size() > 1 || call.queries[0].nearest != INT64_MIN ||
        call.queries[0].farthest != INT64_MAX) {
      step_ = 1;
    }
    for (const Keys& set : call.keys)
      if (set.from.defined() || set.until.defined()) step_ = 1;
  }

  /// Rows of the read, and where they belong.
  struct Rows {
    Tensor out, lse, to;  ///< [R, H, d], [R, H], int64 [R]
  };
  Rows run() {
    std::vector<int64_t> filled, target;
    int64_t n = 0;
    for (const Item* item : items_) n = std::max(n, static_cast<int64_t>(item->queries.size()));
    const auto [rows, at] = padded(
        n, [](const Item& item) -> const std::vector<int64_t>& { return item.queries; },
        [&](int64_t row) { return plan_.query_at(row); });
    for (size_t i = 0; i < items_.size(); ++i)
      for (size_t r = 0; r < items_[i]->queries.size(); ++r) {
        filled.push_back(static_cast<int64_t>(i) * n + static_cast<int64_t>(r));
        target.push_back(items_[i]->queries[r]);
      }
    std::vector<QueryBand> queries = call_.queries;
    for (QueryBand& band : queries) band.q = gathered(band.q, rows, n);
    const Tensor q_raw = call_.plan.score.empty() ? Tensor() : gathered(call_.q_raw, rows, n);
    std::vector<Keys> keys;
    std::vector<std::vector<KeyBand>> key_bands;
    for (size_t s = 0; s < call_.keys.size(); ++s) {
      int64_t m = 0;
      for (const Item* item : items_) m = std::max(m, static_cast<int64_t>(item->keys[s].size()));
      if (m == 0) continue;
      const auto [columns, k_at] = padded(
          m, [s](const Item& item) -> const std::vector<int64_t>& { return item.keys[s]; },
          [&](int64_t row) { return plan_.key_at(s, row); });
      const Keys& set = call_.keys[s];
      keys.push_back({{},
                      gathered(set.v, columns, m),
                      k_at,
                      gathered(set.document, columns, m),
                      gathered(set.from, rows, n),
                      gathered(set.until, rows, n),
                      gathered(set.name, columns, m)});
      key_bands.emplace_back();
      for (const KeyBand& band : call_.key_bands[s]) key_bands.back().push_back({gathered(band.k, columns, m)});
    }
    AttendPlan plan = call_.plan;
    plan.names.query = gathered(plan.names.query, rows, n);
    const int64_t nearest = view_.nearest == INT64_MIN ? INT64_MIN : -floor(-view_.nearest);
    const int64_t farthest = view_.farthest == INT64_MAX ? INT64_MAX : floor(view_.farthest);
    plan.pattern = std::make_shared<Interval>(nearest, farthest);
    const Read read = attend(queries, q_raw, at, gathered(call_.q_document, rows, n), keys, key_bands, plan);
    Tensor out = read.out.transpose(1, 2).flatten(0, 1), lse = read.lse.transpose(1, 2).flatten(0, 1);
    if (static_cast<int64_t>(filled.size()) < out.size(0)) {
      const Tensor some = at::tensor(filled, at.options());
      out = out.index_select(0, some), lse = lse.index_select(0, some);
    }
    return {out, lse, at::tensor(target, at.options())};
  }

 private:
  int64_t floor(int64_t x) const { return x >= 0 ? x / step_ : -((-x + step_ - 1) / step_); }

  /// Rows of all items after each other, n each, and their positions: row 0 at -1 where an item has fewer.
  template <class Of, class At>
  std::pair<Tensor, Tensor> padded(int64_t n, Of&& of, At&& position) const {
    const auto count = static_cast<int64_t>(items_.size());
    const auto options = call_.q_at.options().device(at::kCPU);
    Tensor rows = at::zeros({count * n}, options), at = at::full({count, n}, -1, options);
    auto* row = rows.data_ptr<int64_t>();
    auto* place = at.data_ptr<int64_t>();
    for (const Item* item : items_) {
      const auto& mine = of(*item);
      for (size_t r = 0; r < mine.size(); ++r) row[r] = mine[r], place[r] = position(mine[r]) / step_;
      row += n, place += n;
    }
    return {rows.to(call_.q_at.device()), at.to(call_.q_at.device())};
  }

  const AttendArguments& call_;
  const Plan& plan_;
  const View& view_;
  std::vector<const Item*> items_;
  int64_t step_ = 1;
};

Read read_band(const AttendArguments& call, const View& view) {
  AttendPlan plan = call.plan;
  plan.pattern = std::make_shared<Interval>(view.nearest, view.farthest);
  return attend(call.queries, call.q_raw, call.q_at, call.q_document, call.keys, call.key_bands, plan);
}

/// Nothing: no query sees a key by this view.
std::optional<Read> read_items(const AttendArguments& call, const Plan& plan, const View& view,
                               const std::vector<Item>& items) {
  if (items.empty()) return {};
  std::map<std::pair<int64_t, int64_t>, std::vector<const Item*>> buckets;
  for (const Item& item : items)
    buckets[{rounded(static_cast<int64_t>(item.queries.size())), rounded(item.columns())}].push_back(&item);
  std::vector<Tensor> out, lse, to;
  for (auto& [size, some] : buckets) {
    const auto rows = Bucket(call, plan, view, std::move(some)).run();
    out.push_back(rows.out), lse.push_back(rows.lse), to.push_back(rows.to);
  }
  const auto joined = [](const std::vector<Tensor>& parts) { return parts.size() == 1 ? parts[0] : at::cat(parts, 0); };
  const Tensor rows = joined(out), normalisers = joined(lse), target = joined(to);
  const int64_t batch = call.q_at.size(0), length = call.q_at.size(1), heads = rows.size(1);
  const Tensor all = at::zeros({batch * length, heads, rows.size(2)}, rows.options()).index_copy(0, target, rows);
  const Tensor logs =
      at::full({batch * length, heads}, -INFINITY, normalisers.options()).index_copy(0, target, normalisers);
  return Read{all.unflatten(0, {batch, length}).transpose(1, 2), logs.unflatten(0, {batch, length}).transpose(1, 2)};
}

/// Half types in float: gathered rows may repeat, and their gradients are summed.
struct Whole {
  std::vector<QueryBand> queries;
  Tensor q_raw;
  std::vector<Keys> keys;
  std::vector<std::vector<KeyBand>> key_bands;
  explicit Whole(const AttendArguments& call)
      : queries(call.queries), q_raw(call.q_raw), keys(call.keys), key_bands(call.key_bands) {
    const auto type = queries[0].q.scalar_type();
    if (type == at::kFloat || type == at::kDouble) return;
    for (QueryBand& band : queries) band.q = band.q.to(at::kFloat);
    for (Keys& set : keys) set.v = set.v.to(at::kFloat);
    for (auto& bands : key_bands)
      for (KeyBand& band : bands)
        if (band.k.defined()) band.k = band.k.to(at::kFloat);
  }
};

/// Whether tiles with a mask are the kernel's.
bool tiles_in_kernel(const AttendArguments& call) {
  const Tensor& q = call.queries.at(0).q;
  return q.is_cpu() && (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16);
}
/// About what it costs in them, for one lane.
double kernel_cost(const AttendArguments& call) {
  const PatternPairs pairs(call.plan.pattern);
  const HostRows q_at(call.q_at);
  const int64_t length = call.q_at.size(1);
  double sum = kCall;
  for (const Keys& set : call.keys) {
    const int64_t keys = set.at.size(1);
    if (keys == 0) continue;
    const double area = shown_area(pairs, q_at.row(0), length, HostRows(set.at).row(0), keys);
    // Few queries read the keys that they see; more of them, all keys at once.
    const double read = area / static_cast<double>(length);
    sum += 1.1 * area + kReadKey * (length <= 6 ? read : static_cast<double>(keys));
  }
  return sum;
}

}  // namespace

std::optional<Read> attend_by_views(const AttendArguments& given) {
  if (given.plan.by == AttendPlan::By::tiles || given.plan.pattern->interval() || given.q_at.numel() == 0) return {};
  double tiles = 0;
  const bool choose = given.plan.by == AttendPlan::By::automatic, kernel = tiles_in_kernel(given);
  if (choose && kernel) {
    tiles = kernel_cost(given);
    if (tiles <= std::max(3 * kCall, kRow * static_cast<double>(given.q_at.size(1)))) return {};  // what views cost
  }
  const Plan plan(given);
  if (plan.empty() || plan.twice()) return {};
  const auto views = compile(given.plan.pattern, plan.queries(), plan.keys());
  if (!views) return {};
  std::vector<std::vector<Item>> items;
  double bands = 0, grouped = 0;
  for (const View& view : *views) {
    items.push_back(view.band() ? std::vector<Item>{} : plan.items(view));
    (view.band() ? bands : grouped) += view.band() ? plan.cost(view) : kCall;
    if (views->size() > 1) bands += kJoin * static_cast<double>(given.q_at.size(1));
    for (const Item& item : items.back()) grouped += item.cost(view);
  }
  if (choose && !kernel) tiles = plan.tiled();
  if (choose && bands + grouped / static_cast<double>(given.q_at.size(0)) > tiles) return {};

  const c10::impl::ExcludeDispatchKeyGuard own_types(c10::autocast_dispatch_keyset);
  const Whole whole(given);
  const AttendArguments call{whole.queries, whole.q_raw,     given.q_at, given.q_document,
                             whole.keys,    whole.key_bands, given.plan};
  Read read;
  for (size_t n = 0; n < views->size(); ++n) {
    const View& view = (*views)[n];
    const auto one = view.band() ? std::optional(read_band(call, view)) : read_items(call, plan, view, items[n]);
    if (one) read = read.out.defined() ? join(read, *one) : *one;
  }
  if (!read.out.defined()) return {};
  read.out = read.out.to(given.keys[0].v.scalar_type());
  return read;
}

}  // namespace kinfolk
