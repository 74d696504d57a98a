// Random calls of attend and their definition, for tests.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <map>
#include <random>

#include "kinfolk/ops/attend.h"
#include "kinfolk/pattern/pattern.h"
#include "kinfolk/reference/attention.h"

namespace kinfolk {

/// Adds -slope_h |i - j|: a constant table by distance.
struct SlopeStep : ScoreStep {
  explicit SlopeStep(Tensor slopes) : slopes(std::move(slopes)) {}
  Tensor apply(const Tile& tile, const std::vector<Tensor>&) override {
    return tile.scores - slopes.to(tile.scores.scalar_type()).view({1, -1, 1, 1}) * tile.distance.abs();
  }
  std::optional<DistanceTable> by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override {
    const Tensor distance = at::arange(nearest, farthest + 1, like.options());
    return DistanceTable{-slopes.to(like.scalar_type()).unsqueeze(1) * distance.abs(), nearest};
  }
  Tensor slopes;  ///< [H]
};

/// s tanh(table_h[i - j]) + (q_raw . w) / 4: reads q before the steps, a table and a vector, all with gradients, and
/// multiplies.
struct LearnedStep : ScoreStep {
  LearnedStep(Tensor table, Tensor w, int64_t lowest) : table(std::move(table)), w(std::move(w)), lowest(lowest) {}
  std::vector<Tensor> prepare(const Tensor& like, int64_t nearest, int64_t farthest) override {
    return {table.to(like.scalar_type()).narrow(1, nearest - lowest, farthest - nearest + 1), w.to(like.scalar_type()),
            at::scalar_tensor(nearest, like.options().dtype(at::kLong))};
  }
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
    const Tensor index = (tile.distance - prepared[2]).expand({tile.scores.size(0), 1, -1, -1});
    const Tensor factor =
        prepared[0].index_select(1, index.reshape({-1})).view({-1, index.size(0), index.size(2), index.size(3)});
    return tile.scores * factor.transpose(0, 1).tanh() + at::matmul(tile.q, prepared[1]).unsqueeze(-1) / 4;
  }
  Tensor table, w;  ///< [H, distances], [d]
  int64_t lowest;
};

struct Problem {
  int64_t batch = 2, heads = 4, groups = 2, length = 33, width = 8;
  at::ScalarType type = at::kDouble;
  std::string pattern = "causal";
  std::vector<std::string> per_head;    ///< instead, head after head, over and over
  std::map<std::string, Tensor> facts;  ///< that patterns read
  std::vector<QueryBand> q;
  Tensor q_raw, q_at, q_document;
  std::vector<Keys> keys;
  std::vector<std::vector<KeyBand>> bands;
  std::vector<ScoreStep*> score;
  std::vector<Tensor> more;  ///< parameters of the steps
  AttendPlan plan;

  Tensor draw(at::IntArrayRef sizes) const { return at::randn(sizes, at::TensorOptions().dtype(type)); }

  /// Fills in q, q_at and one set of keys at 0.. (the queries are the last `length` of them).
  Problem& make(int64_t keys_length = -1) {
    const int64_t n = keys_length < 0 ? length : keys_length;
    q = {{draw({batch, heads, length, width})}};
    q_raw = draw({batch, heads, length, width});
    q_at = (at::arange(length, at::kLong) + (n - length)).expand({batch, length});
    add_keys(at::arange(n, at::kLong).expand({batch, n}));
    plan.query_tile = 16, plan.key_tile = 24;
    return *this;
  }
  void add_keys(const Tensor& at) {
    Keys set;
    set.at = at;
    set.v = draw({batch, groups, at.size(1), width});
    set.k = draw({batch, groups, at.size(1), width});
    bands.push_back({{set.k}});
    keys.push_back(set);
  }
  /// Two bands: below `border`, and from it on with other queries and keys.
  void split(int64_t border) {
    q[0].farthest = border;
    QueryBand far{draw({batch, heads, length, width}), 0.2, border, INT64_MAX};
    q.push_back(far);
    for (size_t s = 0; s < keys.size(); ++s) bands[s].push_back({draw(bands[s][0].k.sizes())});
  }
  /// Invalid queries and keys anywhere, other ones in each lane; positions count the valid ones.
  void gaps(uint64_t seed, double rate = 0.3) {
    std::mt19937_64 random(seed);
    const auto hole = [&](const Tensor& at) {
      Tensor out = at.contiguous().clone();
      for (int64_t b = 0; b < out.size(0); ++b)
        for (int64_t n = 0; n < out.size(1); ++n)
          if (static_cast<double>(random() % 1000) < rate * 1000) out[b][n] = -1;
      return out;
    };
    q_at = hole(q_at);
    for (auto& set : keys) set.at = hole(set.at);
  }

  std::vector<Tensor> leaves() {
    std::vector<Tensor> out;
    for (auto& band : q) out.push_back(band.q);
    for (size_t s = 0; s < keys.size(); ++s) {
      out.push_back(keys[s].v);
      for (auto& band : bands[s])
        if (band.k.defined()) out.push_back(band.k);
    }
    if (!score.empty()) out.push_back(q_raw);
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }

  Read run(bool plain) {
    plan.pattern = parsed(pattern);
    plan.per_head.clear();
    for (const auto& words : per_head) plan.per_head.push_back(parsed(words));
    plan.score = score;
    plan.plain = plain;
    return attend(q, q_raw, q_at, q_document, keys, bands, plan);
  }

  std::shared_ptr<const Pattern> parsed(const std::string& words) const { return fill_in(parse_pattern(words), facts); }

  /// Which pairs of a set are seen.  bool [B, 1 or H, L, S]
  Tensor seen(size_t s) const {
    const Tensor i = q_at.unsqueeze(1).unsqueeze(3), j = keys[s].at.unsqueeze(1).unsqueeze(2);
    std::vector<Tensor> each;
    for (const auto& words : per_head) each.push_back(parsed(words)->sees(i, j));
    Tensor out = each.empty() ? parsed(pattern)->sees(i, j)
                              : at::cat(each, 1).repeat({1, heads / static_cast<int64_t>(each.size()), 1, 1});
    out = out.logical_and(i.ge(0)).logical_and(j.ge(0));
    if (q_document.defined() && keys[s].document.defined()) {
      out = out.logical_and(q_document.unsqueeze(1).unsqueeze(3).eq(keys[s].document.unsqueeze(1).unsqueeze(2)));
    }
    if (keys[s].from.defined()) out = out.logical_and(j.ge(keys[s].from.unsqueeze(1).unsqueeze(3)));
    if (keys[s].until.defined()) out = out.logical_and(j.lt(keys[s].until.unsqueeze(1).unsqueeze(3)));
    return out;
  }

  /// The whole matrix with autograd: for gradients.
  Read dense() {
    std::vector<Tensor> scores, values;
    for (size_t s = 0; s < keys.size(); ++s) {
      const int64_t repeat = heads / groups;
      const Tensor distance = q_at.unsqueeze(1).unsqueeze(3) - keys[s].at.unsqueeze(1).unsqueeze(2);
      Tensor visible = seen(s), sum = at::zeros({batch, heads, length, keys[s].v.size(2)}, q_raw.options());
      Tensor covered = at::zeros_like(visible);
      for (size_t b = 0; b < q.size(); ++b) {
        if (!bands[s][b].k.defined()) continue;
        const Tensor inside = distance.ge(q[b].nearest).logical_and(distance.lt(q[b].farthest));
        const double scale = q[b].scale != 0 ? q[b].scale : 1 / std::sqrt(static_cast<double>(width));
        const Tensor k = bands[s][b].k.repeat_interleave(repeat, 1);
        sum = at::where(inside, at::matmul(q[b].q, k.transpose(2, 3)) * scale, sum);
        covered = covered.logical_or(inside);
      }
      visible = visible.logical_and(covered);
      if (!score.empty() && visible.any().item<bool>()) {
        const Tensor met = distance.masked_select(visible);
        const int64_t near = met.min().item<int64_t>(), far = met.max().item<int64_t>();
        for (ScoreStep* step : score) {
          const auto prepared = step->prepare(sum, near, far);
          sum = step->apply({sum, q_raw, distance.clamp(near, far), near, far}, prepared);
        }
      }
      scores.push_back(sum.masked_fill(visible.logical_not(), -1e30));
      values.push_back(keys[s].v.repeat_interleave(repeat, 1));
    }
    const Tensor all = at::cat(scores, 3), none = all.amax(-1, true).le(-1e29);
    const Tensor p = all.softmax(-1).masked_fill(none, 0);
    return {at::matmul(p, at::cat(values, 2)), all.logsumexp(-1).masked_fill(none.squeeze(-1), -INFINITY)};
  }

  reference::AttentionRead definition(
      std::function<double(double, int64_t, int64_t, int64_t, int64_t, int64_t)> change = {},
      int64_t first_row = 0) const {
    reference::Attention a;
    for (const auto& band : q) {
      a.q.push_back(band.q);
      a.band.emplace_back(band.nearest, band.farthest);
      a.scale.push_back(band.scale != 0 ? band.scale : 1 / std::sqrt(static_cast<double>(width)));
    }
    a.q_at = q_at, a.q_document = q_document;
    for (size_t s = 0; s < keys.size(); ++s) {
      reference::AttentionKeys set{{}, keys[s].v, keys[s].at, keys[s].document, keys[s].from, keys[s].until};
      for (const auto& band : bands[s]) set.k.push_back(band.k);
      a.keys.push_back(set);
    }
    const auto parsed = parse_pattern(pattern);
    const int64_t near = parsed->nearest(), far = parsed->farthest();
    EXPECT_TRUE(parsed->interval());
    a.sees = [near, far](int64_t i, int64_t j) { return near <= i - j && i - j <= far; };
    a.change = std::move(change);
    return reference::attention(a, first_row);
  }
};

/// Largest difference relative to the largest entry (at least 1); equal infinities differ by 0.
inline double difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  if (x.sizes() != y.sizes()) return INFINITY;
  if (x.numel() == 0) return 0;
  if (x.isnan().any().item<bool>()) return INFINITY;
  const Tensor same = x.eq(y), scale = y.masked_fill(y.isinf(), 0).abs().max().clamp_min(1);
  return ((x - y).abs().masked_fill(same, 0).max() / scale).item<double>();
}

/// out and lse of both paths against the loops, gradients of both against the whole matrix.
inline void expect_equal_everywhere(
    Problem& problem, double tolerance, const std::string& what,
    std::function<double(double, int64_t, int64_t, int64_t, int64_t, int64_t)> change = {}) {
  const auto want = problem.definition(std::move(change));
  const auto leaves = problem.leaves();
  const Tensor d_out = at::randn_like(want.out), d_lse = at::randn_like(want.lse);
  for (auto& leaf : leaves) leaf.requires_grad_(true);
  const auto gradients = [&](const Read& read) {
    const Tensor lse = read.lse.masked_fill(read.lse.detach().isinf(), 0);
    const Tensor sum = (read.out * d_out.to(read.out.scalar_type())).sum() + (lse * d_lse.to(lse.scalar_type())).sum();
    return torch::autograd::grad({sum}, leaves, {}, std::nullopt, false, true);
  };
  const auto want_gradients = gradients(problem.dense());
  for (const bool plain : {true, false}) {
    const std::string where = what + (plain ? " (plain)" : " (automatic)");
    const Read got = problem.run(plain);
    EXPECT_LE(difference(got.out, want.out), tolerance) << where;
    EXPECT_LE(difference(got.lse, want.lse), tolerance) << where;
    const auto got_gradients = gradients(got);
    for (size_t n = 0; n < leaves.size(); ++n) {
      const auto defined = [&](const Tensor& x) { return x.defined() ? x : at::zeros_like(leaves[n]); };
      EXPECT_LE(difference(defined(got_gradients[n]), defined(want_gradients[n])), 4 * tolerance)
          << where << ", gradient " << n;
    }
    // The same numbers where nothing is to be remembered.
    const at::NoGradGuard guard;
    const Read again = problem.run(plain);
    EXPECT_EQ(difference(again.out, got.out), 0) << where;
  }
  for (auto& leaf : leaves) leaf.requires_grad_(false);
}

}  // namespace kinfolk
