#include "kinfolk/ops/attend.h"

#include <ATen/autocast_mode.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/kernels/isa.h"
#include "kinfolk/ops/attend_call.h"
#include "kinfolk/ops/attend_pairs.h"
#include "kinfolk/ops/attend_views.h"
#include "kinfolk/pattern/views.h"

namespace kinfolk {
namespace {

template <class... Parts>
void expect(bool good, const Parts&... parts) {
  if (!good) fail("[attend] expected ", parts...);
}

void check_rows(const Tensor& rows, int64_t batch, int64_t length, const char* name, bool required) {
  if (!required && !rows.defined()) return;
  expect(rows.defined(), name, "; found an undefined tensor");
  expect(rows.scalar_type() == at::kLong && rows.dim() == 2 && rows.size(0) == batch && rows.size(1) == length, name,
         " to be int64 [", batch, ", ", length, "]; found ", rows.scalar_type(), " ", rows.sizes());
}

void check(const std::vector<QueryBand>& queries, const Tensor& q_raw, const Tensor& q_at, const Tensor& q_document,
           const std::vector<Keys>& keys, const std::vector<std::vector<KeyBand>>& key_bands, const AttendPlan& plan) {
  expect(plan.pattern != nullptr, "a pattern; found none");
  expect(!queries.empty() && !keys.empty(), "queries and keys; found ", queries.size(), " bands and ", keys.size(),
         " sets");
  expect(plan.query_tile >= 1 && plan.key_tile >= 1, "tiles of at least 1; found ", plan.query_tile, " x ",
         plan.key_tile);
  expect(plan.dropout >= 0 && plan.dropout < 1, "dropout in [0, 1); found ", plan.dropout);
  expect(key_bands.size() == keys.size(), keys.size(), " lists of key bands; found ", key_bands.size());
  const Tensor& q = queries[0].q;
  expect(q.defined() && q.dim() == 4, "q [B, H, L, d]; found ", q.defined() ? q.dim() : 0, " dimensions");
  expect(q.is_floating_point(), "floating-point q; found ", q.scalar_type());
  const int64_t batch = q.size(0), heads = q.size(1), length = q.size(2), width = q.size(3);
  for (const QueryBand& band : queries)
    expect(band.q.defined() && band.q.sizes() == q.sizes() && band.q.scalar_type() == q.scalar_type(),
           "q of every band to be ", q.scalar_type(), " ", q.sizes(), "; found another");
  check_rows(q_at, batch, length, "q_at", true);
  check_rows(q_document, batch, length, "q_document", false);
  const Tensor& v0 = keys[0].v;
  for (size_t s = 0; s < keys.size(); ++s) {
    const Tensor& v = keys[s].v;
    expect(v.defined() && v.dim() == 4 && v.size(0) == batch && v.size(1) > 0 && heads % v.size(1) == 0, "v [", batch,
           ", G, S, d] with G a divisor of ", heads, " heads; found ", v.sizes());
    expect(v.size(1) == v0.size(1) && v.size(3) == v0.size(3) && v.scalar_type() == q.scalar_type(),
           "values of every set to share type, groups and width; found ", v.scalar_type(), " ", v.sizes());
    expect(key_bands[s].size() == queries.size(), queries.size(), " key bands of set ", s, "; found ",
           key_bands[s].size());
    for (const KeyBand& band : key_bands[s])
      expect(!band.k.defined() ? queries.size() > 1
                               : band.k.dim() == 4 && band.k.size(0) == batch && band.k.size(1) == v.size(1) &&
                                     band.k.size(2) == v.size(2) && band.k.size(3) == width &&
                                     band.k.scalar_type() == q.scalar_type(),
             "k of set ", s, " to be [", batch, ", ", v.size(1), ", ", v.size(2), ", ", width, "] like v and q; found ",
             band.k.defined() ? band.k.sizes() : at::IntArrayRef{});
    check_rows(keys[s].at, batch, v.size(2), "keys.at", true);
    check_rows(keys[s].document, batch, v.size(2), "keys.document", false);
    check_rows(keys[s].from, batch, length, "keys.from", false);
    check_rows(keys[s].until, batch, length, "keys.until", false);
  }
  if (!plan.score.empty())
    expect(q_raw.defined() && q_raw.dim() == 4 && q_raw.size(0) == batch && q_raw.size(1) == heads &&
               q_raw.size(2) == length,
           "q_raw [", batch, ", ", heads, ", ", length, ", d] for the score steps; found ",
           q_raw.defined() ? q_raw.sizes() : at::IntArrayRef{});
}

Tensor like_scores(const Tensor& q) { return q.detach().to(score_type(q)); }

/// The part of a step's table or factor that covers [nearest, farthest]; undefined when the step has none.
template <class Made>
Tensor table_of(const std::optional<Made>& made, const Tensor& like, int64_t nearest, int64_t farthest) {
  if (!made || !made->table.defined()) return {};
  const Tensor& table = made->table;
  const int64_t skip = nearest - made->lowest, wanted = farthest - nearest + 1;
  expect(table.dim() == 2 && skip >= 0 && skip + wanted <= table.size(1), "a table of distances ", nearest, " to ",
         farthest, " from the score step; found ", table.sizes(), " from distance ", made->lowest);
  return table.narrow(1, skip, wanted).to(like.scalar_type());
}

/// Reasons that the tensors and the plan alone give, score steps aside.
std::vector<std::string> plain_reasons(const std::vector<QueryBand>& queries, const std::vector<Keys>& keys,
                                       const AttendPlan& plan) {
  std::vector<std::string> why;
  if (plan.plain) why.push_back("the plain path was asked for");
  const Tensor& q = queries.at(0).q;
  if (!q.is_cpu()) why.push_back(text("tensors are on ", q.device(), " (the fused path is for the CPU)"));
  const auto type = q.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16) {
    why.push_back(text("numbers are ", type, " (fused: Float, Double, BFloat16)"));
  }
  if (type == at::kDouble && plan.dropout > 0) why.push_back("dropout of weights in Double (fused: Float, BFloat16)");
  if (type == at::kDouble && plan.pattern && !plan.pattern->interval() && !compile(plan.pattern)) {
    why.push_back("the pattern " + plan.pattern->text() + " has too many views in Double (fused: Float, BFloat16)");
  }
  if (type == at::kDouble && queries.size() > 1) {
    why.push_back(text(queries.size(), " bands of distance in Double (fused: Float, BFloat16)"));
  }
  if (type == at::kFloat) return why;
  for (const Keys& key : keys)
    if (key.v.defined() && key.v.size(3) != q.size(3)) {
      why.push_back(text("values are ", key.v.size(3), " wide and keys ", q.size(3)));
      break;
    }
  return why;
}

/// Of the types that the kernel computes in float32, float32 always. ATen's has AMX for bfloat16, but only forward, and
/// reads a cache of it as it lies.
bool takes_kernel(const Tensor& q, bool graph) {
  if (q.scalar_type() != at::kBFloat16) return q.scalar_type() == at::kFloat;
  return graph || (q.size(2) > 6 && !kernels::has_amx_bf16());
}

/// What score steps add, so that a fused path can; the reason where they do something else.
struct Added {
  Tensor table;   ///< [H or 1, distances], the sum of all; undefined: none
  Tensor factor;  ///< [H or 1, distances], what the first step multiplies by; undefined: nothing
  bool relu = false;
  std::optional<QueryTable> by;
  std::optional<QuerySpan> span;
  std::string why_not;
};
Added added_by(const std::vector<ScoreStep*>& steps, const Tensor& q_raw, const Tensor& like, int64_t nearest,
               int64_t farthest, bool learns) {
  Added added;
  for (ScoreStep* step : steps) {
    const auto made = step->scales_by_distance(like, nearest, farthest);
    if (const Tensor factor = table_of(made, like, nearest, farthest); factor.defined()) {
      if (!learns) {
        added.why_not = text("a score step multiplies in ", like.scalar_type(), " (fused: Float, BFloat16)");
      } else if (step != steps[0]) {
        added.why_not = "a score step that multiplies is not the first of the steps";
      }
      if (!added.why_not.empty()) return added;
      added.factor = factor, added.relu = made->relu;
      continue;
    }
    const Tensor table = table_of(step->by_distance(like, nearest, farthest), like, nearest, farthest);
    if (table.defined() && (learns || !table.requires_grad())) {
      added.table = added.table.defined() ? added.table + table : table;
      continue;
    }
    if (auto span = learns && !table.defined() ? step->spans(q_raw) : std::nullopt) {
      if (added.span) {
        added.why_not = "two score steps have spans of queries";
        return added;
      }
      added.span = std::move(span);
      continue;
    }
    auto by = learns && !table.defined() ? step->by_query(q_raw, nearest, farthest) : std::nullopt;
    if (!by || !by->r.defined()) {
      added.why_not =
          "a score step gives no table by distance that " + std::string(learns ? "is added" : "is constant");
      return added;
    }
    if (added.by) {
      added.why_not = "two score steps add by query and distance";
      return added;
    }
    expect(by->r.dim() == 3 && by->r.size(0) == q_raw.size(1) && by->r.size(1) == farthest - nearest + 1 &&
               by->p.dim() == 4 && by->p.size(3) == by->r.size(2),
           "p [B, H, L, c] and r [H, ", farthest - nearest + 1, ", c] of a score step; found ", by->p.sizes(), " and ",
           by->r.sizes());
    added.by = std::move(by);
  }
  return added;
}

/// What a step adds to values of width e.
std::optional<DistanceValues> values_of(const std::vector<ScoreStep*>& steps, int64_t width) {
  std::optional<DistanceValues> found;
  for (ScoreStep* step : steps) {
    auto made = step->adds_to_values();
    if (!made || !made->rows.defined()) continue;
    expect(!found, "one score step that adds to values; found several");
    expect(made->rows.dim() == 2 && made->rows.size(0) > 0 && made->rows.size(1) == width, "rows [distances, ", width,
           "] of a score step that adds to values; found ", made->rows.sizes());
    found = std::move(made);
  }
  return found;
}

/// What autocast does to a product: every operand in its type (double stays).
struct Cast {
  std::vector<QueryBand> queries;
  std::vector<Keys> keys;
  std::vector<std::vector<KeyBand>> key_bands;
};
Cast cast_all(const std::vector<QueryBand>& queries, const std::vector<Keys>& keys,
              const std::vector<std::vector<KeyBand>>& key_bands) {
  Cast out{queries, keys, key_bands};
  const auto type = at::autocast::get_autocast_dtype(queries[0].q.device().type());
  const auto cast = [&](Tensor& x) {
    if (x.defined() && x.is_floating_point() && x.scalar_type() != at::kDouble) x = x.to(type);
  };
  for (auto& band : out.queries) cast(band.q);
  for (auto& set : out.keys) cast(set.v);
  for (auto& bands : out.key_bands)
    for (auto& band : bands) cast(band.k);
  return out;
}

Read attend_here(const std::vector<QueryBand>& queries, const Tensor& q_raw, const Tensor& q_at,
                 const Tensor& q_document, const std::vector<Keys>& keys,
                 const std::vector<std::vector<KeyBand>>& key_bands, const AttendPlan& plan) {
  check(queries, q_raw, q_at, q_document, keys, key_bands, plan);
  if (auto read = attend_by_views({queries, q_raw, q_at, q_document, keys, key_bands, plan})) return *read;
  const Tensor& q = queries[0].q;
  auto call = std::make_shared<AttendCall>();
  call->batch = q.size(0), call->heads = q.size(1), call->length = q.size(2), call->width = q.size(3);
  call->groups = keys[0].v.size(1), call->value_width = keys[0].v.size(3);
  call->pattern = plan.pattern;
  call->q_at = q_at, call->q_document = q_document;
  for (const Keys& key : keys) call->keys.push_back({{}, {}, key.at, key.document, key.from, key.until, key.name});
  for (const QueryBand& band : queries)
    call->bands.push_back({band.scale != 0 ? band.scale : 1 / std::sqrt(static_cast<double>(call->width)), band.nearest,
                           band.farthest == INT64_MAX ? INT64_MAX : band.farthest - 1});
  call->query_tile = plan.query_tile;
  call->dropout = plan.dropout, call->seed = plan.seed, call->names = plan.names;

  std::vector<Tensor> inputs;
  for (const QueryBand& band : queries) inputs.push_back(band.q);
  for (size_t s = 0; s < keys.size(); ++s) {
    inputs.push_back(keys[s].v);
    for (const KeyBand& band : key_bands[s]) inputs.push_back(band.k);
  }

  const auto values = values_of(plan.score, call->value_width);
  const auto add_values = [&] {
    if (!values) return;
    call->values_input = inputs.size(), call->values_lowest = values->lowest;
    inputs.push_back(values->rows.to(score_type(q)));
  };
  const bool interval = plan.pattern->interval();
  if ((interval || q.scalar_type() != at::kDouble) && plain_reasons(queries, keys, plan).empty()) {
    if (!interval) call->shown = std::make_shared<PatternPairs>(plan.pattern);
    call->nearest = plan.pattern->nearest(), call->farthest = plan.pattern->farthest();
    if (call->bands.size() == 1) {
      call->nearest = std::max(call->nearest, call->bands[0].nearest);
      call->farthest = std::min(call->farthest, call->bands[0].farthest);
    }
    const int64_t reach = call->nearest == INT64_MIN || call->farthest == INT64_MAX
                              ? INT64_MAX
                              : call->farthest - std::max<int64_t>(call->nearest, -(int64_t{1} << 40));
    if (call->length >= 8 * plan.query_tile && reach >= 8 * plan.query_tile) call->query_tile *= 2;
    const bool graph = at::GradMode::is_enabled() &&
                       std::any_of(inputs.begin(), inputs.end(), [](const Tensor& x) { return x.requires_grad(); });
    const bool own =
        takes_kernel(q, graph || !plan.score.empty() || queries.size() > 1 || plan.dropout > 0 || !interval);
    call->layout = Layout(*plan.pattern, q_at, q_document, keys, call->query_tile, kPieceKeys);
    const Meeting all = call->layout.all();
    Added added;
    if (all.any && !plan.score.empty()) {
      call->lowest = all.nearest;
      added = added_by(plan.score, q_raw, like_scores(q), all.nearest, all.farthest, own);
    }
    if (added.why_not.empty() && own) {
      if (added.table.defined()) {
        call->table_input = inputs.size();
        inputs.push_back(added.table);
      }
      if (added.factor.defined()) {
        call->factor_input = inputs.size();
        call->relu = added.relu;
        inputs.push_back(added.factor);
      }
      if (added.by) {
        call->by_input = inputs.size();
        call->by_scale = added.by->scale;
        inputs.push_back(added.by->p.to(at::kFloat));
        inputs.push_back(added.by->r.to(at::kFloat));
      }
      if (added.span) {
        call->span_input = inputs.size();
        call->ramp = added.span->ramp, call->own = added.span->own;
        inputs.push_back(added.span->span.to(at::kFloat));
      }
      add_values();
      return attend_kernel(call, inputs);
    }
    if (added.why_not.empty() && !values) {
      if (added.table.defined()) call->table = added.table.contiguous();
      make_pieces(*call);
      return attend_fused(call, inputs);
    }
  }

  call->score = plan.score, call->owned = plan.owned;
  call->query_tile = plan.query_tile;
  // Few queries: as many scores a tile with more keys, so that a step over a cache is one tile.
  call->key_tile = plan.key_tile * std::max<int64_t>(1, plan.query_tile / std::max<int64_t>(1, call->length));
  call->layout = Layout(*plan.pattern, q_at, q_document, keys, call->query_tile, call->key_tile);
  const Meeting all = call->layout.all();
  if (!plan.score.empty()) inputs.push_back(q_raw);
  for (ScoreStep* step : plan.score) {
    const auto made = all.any ? step->prepare(like_scores(q_raw), all.nearest, all.farthest) : std::vector<Tensor>{};
    call->prepared.push_back(made.size());
    for (const Tensor& x : made) inputs.push_back(x.is_floating_point() ? x.to(score_type(q)) : x);
  }
  add_values();
  return attend_tiled(call, inputs);
}

}  // namespace

at::ScalarType score_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

Tensor grouped(const Tensor& x, int64_t groups) {
  return x.contiguous().view({x.size(0), groups, x.size(1) / groups * x.size(2), x.size(3)});
}

std::vector<std::string> why_not_fused(const std::vector<QueryBand>& queries, const std::vector<Keys>& keys,
                                       const AttendPlan& plan) {
  auto why = plain_reasons(queries, keys, plan);
  const bool double_values = queries[0].q.scalar_type() == at::kDouble && !keys.empty() &&
                             values_of(plan.score, keys[0].v.size(3)).has_value();
  if (double_values) why.push_back("a score step adds to values in Double (fused: Float, BFloat16)");
  const Added added =
      added_by(plan.score, queries[0].q, like_scores(queries[0].q), 0, 0, takes_kernel(queries[0].q, true));
  if (!added.why_not.empty()) why.push_back(added.why_not);
  return why;
}

Read attend(const std::vector<QueryBand>& queries, const Tensor& q_raw, const Tensor& q_at, const Tensor& q_document,
            const std::vector<Keys>& keys, const std::vector<std::vector<KeyBand>>& key_bands, const AttendPlan& plan) {
  if (plan.dropout > 0 && !plan.names.query.defined() && q_at.defined() && q_at.dim() == 2) {
    AttendPlan named = plan;
    named.names.query = q_at + at::arange(q_at.size(0), q_at.options()).mul_(int64_t{1} << 40).unsqueeze(1);
    std::vector<Keys> sets = keys;
    for (Keys& set : sets) set.name = set.at;
    return attend(queries, q_raw, q_at, q_document, sets, key_bands, named);
  }
  if (!plan.per_head.empty()) {
    AttendPlan first = plan;
    first.pattern = plan.per_head[0];
    check(queries, q_raw, q_at, q_document, keys, key_bands, first);
    return attend_by_head({queries, q_raw, q_at, q_document, keys, key_bands, plan});
  }
  if (!queries.empty() && queries[0].q.defined() && at::autocast::is_autocast_enabled(queries[0].q.device().type())) {
    auto cast = cast_all(queries, keys, key_bands);
    return attend_here(cast.queries, q_raw, q_at, q_document, cast.keys, cast.key_bands, plan);
  }
  return attend_here(queries, q_raw, q_at, q_document, keys, key_bands, plan);
}

}  // namespace kinfolk
