// Heads with patterns of their own.
#include "kinfolk/core/errors.h"
#include "kinfolk/ops/attend_views.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

/// A score step as some of the heads see it.
struct OfHeads final : ScoreStep {
  OfHeads(ScoreStep* all, Tensor heads, int64_t count) : all(all), heads(std::move(heads)), count(count) {}
  std::vector<Tensor> prepare(const Tensor& like, int64_t nearest, int64_t farthest) override {
    return all->prepare(like, nearest, farthest);
  }
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
    Tile whole = tile;
    whole.scores = spread(tile.scores);
    whole.q = spread(tile.q);
    return all->apply(whole, prepared).index_select(1, heads);
  }
  std::optional<DistanceTable> by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override {
    auto made = all->by_distance(like, nearest, farthest);
    if (made && made->table.defined() && made->table.size(0) > 1) made->table = made->table.index_select(0, heads);
    return made;
  }
  std::optional<DistanceValues> adds_to_values() override { return all->adds_to_values(); }
  std::optional<DistanceFactor> scales_by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override {
    auto made = all->scales_by_distance(like, nearest, farthest);
    if (made && made->table.defined() && made->table.size(0) > 1) made->table = made->table.index_select(0, heads);
    return made;
  }
  std::optional<QueryTable> by_query(const Tensor& q_raw, int64_t nearest, int64_t farthest) override {
    auto made = all->by_query(spread(q_raw), nearest, farthest);
    if (made && made->r.defined()) made->p = made->p.index_select(1, heads), made->r = made->r.index_select(0, heads);
    return made;
  }
  std::optional<QuerySpan> spans(const Tensor& q_raw) override {
    auto made = all->spans(spread(q_raw));
    if (made) made->span = made->span.index_select(1, heads);
    return made;
  }
  /// x [B, some, ...] with all heads, the others zero.
  Tensor spread(const Tensor& x) const {
    if (!x.defined()) return x;
    auto sizes = x.sizes().vec();
    sizes[1] = count;
    return at::zeros(sizes, x.options()).index_copy(1, heads, x);
  }
  ScoreStep* all;
  Tensor heads;
  int64_t count;
};

}  // namespace

Read attend_by_head(const AttendArguments& call) {
  const auto& patterns = call.plan.per_head;
  const int64_t heads = call.queries.at(0).q.size(1), groups = call.keys.at(0).v.size(1);
  const auto many = static_cast<int64_t>(patterns.size());
  if (heads % many != 0) fail("[attend] expected patterns per head in a number that divides ", heads, "; found ", many);
  std::vector<std::string> texts;
  std::vector<std::vector<int64_t>> lists;
  for (int64_t h = 0; h < heads; ++h) {
    const std::string words = patterns[static_cast<size_t>(h % many)]->text();
    const auto known = static_cast<size_t>(std::find(texts.begin(), texts.end(), words) - texts.begin());
    if (known == texts.size()) texts.push_back(words), lists.emplace_back();
    lists[known].push_back(h);
  }
  std::vector<Tensor> outs, lses;
  std::vector<int64_t> order(static_cast<size_t>(heads));
  int64_t done = 0;
  const auto options = call.q_at.options();
  for (const auto& list : lists) {
    AttendPlan plan = call.plan;
    plan.per_head.clear();
    plan.pattern = patterns[static_cast<size_t>(list[0] % many)];
    if (lists.size() == 1) {
      return attend(call.queries, call.q_raw, call.q_at, call.q_document, call.keys, call.key_bands, plan);
    }
    plan.names.head = list;
    const Tensor mine = at::tensor(list, options);
    const auto queries_of = [&](const Tensor& x) { return x.defined() ? x.index_select(1, mine) : x; };
    // Keys and values stay whole where every group has as many of these heads as every other.
    std::vector<int64_t> of_group, count(static_cast<size_t>(groups));
    for (const int64_t h : list)
      of_group.push_back(h / (heads / groups)), ++count[static_cast<size_t>(of_group.back())];
    const bool even = std::all_of(count.begin(), count.end(), [&](int64_t n) { return n == count[0]; });
    const Tensor chosen = at::tensor(of_group, options);
    const auto keys_of = [&](const Tensor& x) { return even || !x.defined() ? x : x.index_select(1, chosen); };
    auto queries = call.queries;
    for (QueryBand& band : queries) band.q = queries_of(band.q);
    auto keys = call.keys;
    for (Keys& set : keys) set.v = keys_of(set.v);
    auto key_bands = call.key_bands;
    for (auto& bands : key_bands)
      for (KeyBand& band : bands) band.k = keys_of(band.k);
    for (ScoreStep*& step : plan.score) {
      plan.owned.push_back(std::make_shared<OfHeads>(step, mine, heads));
      step = plan.owned.back().get();
    }
    const Read read = attend(queries, queries_of(call.q_raw), call.q_at, call.q_document, keys, key_bands, plan);
    outs.push_back(read.out), lses.push_back(read.lse);
    for (const int64_t h : list) order[static_cast<size_t>(h)] = done++;
  }
  const Tensor back = at::tensor(order, options);
  return {at::cat(outs, 1).index_select(1, back), at::cat(lses, 1).index_select(1, back)};
}

}  // namespace kinfolk
