// attend: softmax attention over any pattern, bands and score steps, in tiles; the one operator of every softmax
// member.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kinfolk {
using at::Tensor;

struct Pattern;  // pattern/pattern.h

/// A normalised read and the log of its normaliser. Joining two is exact softmax over the union of their keys.
struct Read {
  Tensor out;  ///< [B, H, L, d]
  Tensor lse;  ///< [B, H, L]; -inf where a query saw nothing (out is 0 there); float for half types
};
/// The read over the keys of both: exact, differentiable in out and lse of each side, also where one saw nothing.
Read join(const Read& a, const Read& b);

/// Queries or keys whose scaled dot product is the score while nearest <= i - j < farthest.
struct QueryBand {
  Tensor q;          ///< [B, H, L, d]
  double scale = 0;  ///< of the dot product; 0: 1/sqrt(d)
  int64_t nearest = INT64_MIN, farthest = INT64_MAX;
};
struct KeyBand {
  Tensor k;  ///< [B, G, S, d]; undefined: no key of the set is seen at the distances of the band
};

/// A set of keys: where each stands and, for each query, from where until where it may look.
struct Keys {
  Tensor k, v;       ///< [B, G, S, d]; finite numbers in empty slots too
  Tensor at;         ///< int64 [B, S] positions; -1: an empty or invalid slot, never seen
  Tensor document;   ///< int64 [B, S]; undefined: one document
  Tensor from;       ///< int64 [B, L]: the query sees only keys with from <= at; undefined: no limit
  Tensor until;      ///< int64 [B, L]: and at < until
  Tensor name = {};  ///< int64 [B, S], what dropout draws from; undefined: `at`
};

/// What a score step adds by distance alone, so that a fused kernel can: column c is distance lowest + c.
struct DistanceTable {
  Tensor table;  ///< [H, distances]
  int64_t lowest = 0;
};

/// What a score step multiplies by: score becomes max(score, 0) table, or score table. The table holds every distance
/// that is asked for, column c is distance lowest + c.
struct DistanceFactor {
  Tensor table;  ///< [H, distances]
  int64_t lowest = 0;
  bool relu = false;
};

/// What a score step adds by query and distance: scale p_i . r_(i-j), so that a fused kernel can.
struct QueryTable {
  Tensor p;  ///< [B, H, L, c]
  Tensor r;  ///< [H, distances, c], of the distances from the one asked for as the nearest on
  double scale = 1;
};

/// ln m_i(i - j) added to scores, m_i(x) = clip((ramp + span_i - x) / ramp, 0, 1); below 1e-30 a key is not seen.
struct QuerySpan {
  Tensor span;  ///< [B, H, L]
  double ramp = 1;
  bool own = true;  ///< false: nor is the key at distance 0
};

/// What a score step adds to values: a query meets v_j + rows[i - j - lowest], distances below and beyond as the first
/// and the last row.
struct DistanceValues {
  Tensor rows;  ///< [distances, e], of all heads
  int64_t lowest = 0;
};

/// A tile of the score matrix: rows are queries, columns keys.
struct Tile {
  Tensor scores;              ///< [B, H, Lq, Lk], scaled
  Tensor q;                   ///< [B, H, Lq, d] before the QkSteps
  Tensor distance;            ///< int64 [B or 1, 1, Lq, Lk]: i - j, clamped to [nearest, farthest]
  int64_t nearest, farthest;  ///< the distances of visible pairs in this tile lie in [nearest, farthest]
};

/// A step on scores: ALiBi, T5, KERPLE, Shaw, Transformer-XL, DA, adaptive span. Not a module: nn/score wraps it in
/// one. It must live until the backward pass, which calls `apply` again. `like` is a tensor of the type and device of
/// the scores (float for half types).
struct ScoreStep {
  virtual ~ScoreStep() = default;
  /// Differentiable tensors that `apply` needs, made once a call for distances in [nearest, farthest].
  /// `apply` may use no other tensor that wants a gradient.
  virtual std::vector<Tensor> prepare(const Tensor& /*like*/, int64_t /*nearest*/, int64_t /*farthest*/) { return {}; }
  virtual Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) = 0;  ///< new scores, same shape
  /// The same as a table, when the step only adds by distance; it may want a gradient. Undefined table: it cannot.
  virtual std::optional<DistanceTable> by_distance(const Tensor& /*like*/, int64_t /*nearest*/, int64_t /*farthest*/) {
    return {};
  }
  /// The same as a factor, when the step only multiplies by distance; it may want a gradient.
  virtual std::optional<DistanceFactor> scales_by_distance(const Tensor& /*like*/, int64_t /*nearest*/,
                                                           int64_t /*farthest*/) {
    return {};
  }
  /// What the step adds to values besides; one step of a call may. It may want a gradient.
  virtual std::optional<DistanceValues> adds_to_values() { return {}; }
  /// The same by query and distance, when the step only adds so; differentiable.
  virtual std::optional<QueryTable> by_query(const Tensor& /*q_raw*/, int64_t /*nearest*/, int64_t /*farthest*/) {
    return {};
  }
  /// The same as spans of the queries, when the step only adds those; differentiable.
  virtual std::optional<QuerySpan> spans(const Tensor& /*q_raw*/) { return {}; }
};

struct AttendPlan {
  std::shared_ptr<const Pattern> pattern;  ///< of every head, without facts to fill in
  std::vector<std::shared_ptr<const Pattern>> per_head =
      {};                                    ///< one a head instead, over and over; their number divides H
  std::vector<ScoreStep*> score;             ///< in order
  double dropout = 0;                        ///< of the attention weights
  uint64_t seed = 0;                         ///< of the dropout, which is a function of it, lane, head and positions
  int64_t query_tile = 128, key_tile = 512;  ///< of the tiled plain path
  bool plain = false;                        ///< tests: never the fused path
  /// How a pattern that is no interval of distances is computed: view by view (pattern/views.h), or in tiles with its
  /// mask, without those that nobody sees: by the kernel or, where that cannot, by the plain path. By default what is
  /// cheaper.
  enum class By { automatic, views, tiles } by = By::automatic;
  std::vector<std::shared_ptr<ScoreStep>> owned = {};  ///< steps that nobody else keeps alive
  /// What dropout draws from where attend calls itself on parts of a call; empty: lanes, positions and heads.
  struct Names {
    Tensor query;  ///< int64 [B, L]
    std::vector<int64_t> head;
  } names = {};
};

/// softmax over all keys of all sets together: out_i = sum_j softmax_j(score(q_i, k_j)) v_j.
/// queries: one band, or several with disjoint ranges of distance; keys[s].k holds one tensor a band in key_bands[s].
/// q_raw [B, H, L, d] is q before the QkSteps (for score steps). q_at int64 [B, L], -1: an invalid query (its row is
/// 0); q_document int64 [B, L] or undefined. G divides H. Memory is linear in L; backward recomputes tiles from lse.
Read attend(const std::vector<QueryBand>& queries, const Tensor& q_raw, const Tensor& q_at, const Tensor& q_document,
            const std::vector<Keys>& keys, const std::vector<std::vector<KeyBand>>& key_bands, const AttendPlan& plan);

/// Why a call would not take a fused path; empty: it does. Fused are, on the CPU: in float32 and bfloat16 (computed in
/// float32) any pattern, several bands, dropout, and score steps that add by distance, one that adds by query and
/// distance and, as the first of them, one that multiplies by distance, all of which may learn; in double one band, a
/// pattern that is one interval of distances or has views, and constant tables by distance. Several sets of keys,
/// documents, limits, invalid tokens and grouped heads included.
std::vector<std::string> why_not_fused(const std::vector<QueryBand>& queries, const std::vector<Keys>& keys,
                                       const AttendPlan& plan);

}  // namespace kinfolk
