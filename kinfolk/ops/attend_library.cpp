// torch.ops.kinfolk.attend: softmax attention over one set of keys, with flattened arguments.
//
// q [B, H, L, d], k [B, G, S, d], v [B, G, S, e], G a divisor of H -> out [B, H, L, e] and lse [B, H, L] (float32 or
// wider), the log of the normaliser. A query that sees nothing has out 0 and lse -inf.
//   pattern                who sees whom, in the language of pattern/pattern.h; per_head: one for each head instead,
//                          over and over. Its facts: prefix int64 [B], global_positions int64 [B, n]
//   scale                  of the dot products; 0: 1/sqrt(d)
//   valid, document, position      of the tokens of k: bool, int64, int64 [B, S]. A token that is not valid is not
//                          seen; documents do not see each other; a position is by default the number of valid tokens
//                          before
//   q_valid, q_document, q_position    of those of q: bool, int64, int64 [B, L]. By default the queries are the last L
//                          of the S tokens
//   sees_from, sees_until  int64 [B, L]: a query sees positions in [sees_from, sees_until)
//   factor                 [H or 1, n]: scores (factor_relu: their positive part) are multiplied by column c at
//                          i - j = factor_from + c; beyond its ends by the nearest column
//   table                  [H or 1, n]: then column c is added at distance table_from + c, as with `factor`
//   relative               [H or 1, n, c]: relative_scale times its product with relative_q [B, H, L, c] (q by default)
//                          is added, by distance from relative_from on, as with `table`
//   band_q, band_k         further q and k, n of each, that make the scores from distance band_edges[n] on, up to the
//                          next edge; q and k themselves those below the first
//   dropout, seed          of the attention weights; equal seeds drop the same
#include <mutex>

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/attend.h"
#include "kinfolk/ops/operator_library.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

/// Entries of x [H or 1, n, ...] for every distance in [nearest, farthest], its ends going on.
Tensor entries(const Tensor& x, int64_t lowest, int64_t nearest, int64_t farthest, int64_t heads) {
  const Tensor distance = at::arange(nearest, farthest + 1, x.options().dtype(at::kLong));
  const Tensor all = x.index_select(1, (distance - lowest).clamp(0, x.size(1) - 1));
  std::vector<int64_t> sizes = all.sizes().vec();
  sizes[0] = heads;
  return all.expand(sizes);
}

/// Adds a table, or multiplies by it.
struct TableStep : ScoreStep {
  TableStep(Tensor table, int64_t lowest, int64_t heads, bool multiplies, bool relu)
      : table(std::move(table)), lowest(lowest), heads(heads), multiplies(multiplies), relu(relu) {}
  Tensor part(const Tensor& like, int64_t nearest, int64_t farthest) const {
    return entries(table.to(like.scalar_type()), lowest, nearest, farthest, heads);
  }
  std::vector<Tensor> prepare(const Tensor& like, int64_t nearest, int64_t farthest) override {
    first = nearest;
    return {part(like, nearest, farthest)};
  }
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
    const Tensor column = tile.distance - first;  // [B or 1, 1, Lq, Lk]
    const Tensor found = prepared[0]
                             .index_select(1, column.reshape({-1}))
                             .view({heads, column.size(0), column.size(2), column.size(3)})
                             .transpose(0, 1);
    if (!multiplies) return tile.scores + found;
    return (relu ? tile.scores.clamp_min(0) : tile.scores) * found;
  }
  std::optional<DistanceTable> by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override {
    if (multiplies) return {};
    return DistanceTable{part(like, nearest, farthest), nearest};
  }
  std::optional<DistanceFactor> scales_by_distance(const Tensor& like, int64_t nearest, int64_t farthest) override {
    if (!multiplies) return {};
    return DistanceFactor{part(like, nearest, farthest), nearest, relu};
  }
  Tensor table;  ///< [H or 1, n]
  int64_t lowest, heads, first = 0;
  bool multiplies, relu;
};

struct RelativeStep : ScoreStep {
  RelativeStep(Tensor rows, int64_t lowest, double scale, int64_t heads)
      : rows(std::move(rows)), lowest(lowest), heads(heads), scale(scale) {}
  std::vector<Tensor> prepare(const Tensor& like, int64_t nearest, int64_t farthest) override {
    first = nearest;
    return {entries(rows.to(like.scalar_type()), lowest, nearest, farthest, heads)};
  }
  Tensor apply(const Tile& tile, const std::vector<Tensor>& prepared) override {
    const Tensor near = prepared[0].narrow(1, tile.nearest - first, tile.farthest - tile.nearest + 1);
    const Tensor all = at::matmul(tile.q.to(near.scalar_type()) * scale, near.transpose(1, 2));  // [B, H, Lq, n]
    return tile.scores + all.gather(-1, (tile.distance - tile.nearest).expand(tile.scores.sizes()));
  }
  std::optional<QueryTable> by_query(const Tensor& p, int64_t nearest, int64_t farthest) override {
    return QueryTable{p, entries(rows.to(p.scalar_type()), lowest, nearest, farthest, heads), scale};
  }
  Tensor rows;  ///< [H or 1, n, c]
  int64_t lowest, heads, first = 0;
  double scale;
};

std::shared_ptr<const Pattern> parsed(const std::string& words) {
  constexpr size_t kKept = 256;
  static std::mutex lock;
  static std::map<std::string, std::shared_ptr<const Pattern>> kept;
  const std::lock_guard<std::mutex> guard(lock);
  if (const auto found = kept.find(words); found != kept.end()) return found->second;
  const auto pattern = parse_pattern(words);
  if (kept.size() >= kKept) kept.clear();
  return kept[words] = pattern;
}

/// Where keys and queries stand, and their documents.
struct Places {
  Tensor at, document, q_at, q_document;

  Places(const Arguments& a, int64_t B, int64_t L, int64_t S) {
    at = places(a.tensor("position"), a.tensor("valid"), B, S, a.tensor("k"), "");
    document = a.tensor("document");
    q_document = a.tensor("q_document");
    const Tensor position = a.tensor("q_position");
    if (L > S && !position.defined()) {
      fail("[attend.q_position] expected a tensor where there are more queries (", L, ") than keys (", S,
           "); found None");
    }
    if (position.defined()) {
      q_at = places(position, a.tensor("q_valid"), B, L, a.tensor("k"), "q_");
    } else {
      q_at = at.narrow(1, S - L, L);
      if (const Tensor valid = a.tensor("q_valid"); valid.defined()) {
        check(valid, at::kBool, B, L, "q_valid");
        q_at = q_at.masked_fill(valid.logical_not(), -1);
      }
    }
    if (document.defined() && !q_document.defined()) {
      check(document, at::kLong, B, S, "document");
      if (L > S) fail("[attend.q_document] expected a tensor as `document` is given; found None");
      q_document = document.narrow(1, S - L, L);
    }
  }

 private:
  static void check(const Tensor& t, at::ScalarType type, int64_t B, int64_t n, const std::string& name) {
    if (t.scalar_type() != type || t.sizes() != at::IntArrayRef{B, n}) {
      fail("[attend.", name, "] expected ", type, " [", B, ", ", n, "]; found ", t.scalar_type(), " ", t.sizes());
    }
  }
  static Tensor places(const Tensor& position, const Tensor& valid, int64_t B, int64_t n, const Tensor& like,
                       const std::string& whose) {
    if (valid.defined()) check(valid, at::kBool, B, n, whose + "valid");
    if (position.defined()) check(position, at::kLong, B, n, whose + "position");
    if (!position.defined() && !valid.defined()) {
      return at::arange(n, like.options().dtype(at::kLong).requires_grad(false)).expand({B, n});
    }
    const Tensor at = position.defined() ? position : valid.to(at::kLong).cumsum(1).sub(1);
    return valid.defined() ? at.masked_fill(valid.logical_not(), -1) : at;
  }
};

AttendPlan plan_of(const Arguments& a, int64_t B, int64_t H) {
  std::map<std::string, Tensor> facts;
  if (const Tensor prefix = a.tensor("prefix"); prefix.defined()) facts["prefix"] = prefix;
  if (const Tensor global = a.tensor("global_positions"); global.defined()) facts["global"] = global;
  AttendPlan plan;
  plan.pattern = fill_in(parsed(a["pattern"].toStringRef()), facts, B);
  if (!a["per_head"].isNone()) {
    for (const c10::IValue& words : a["per_head"].toListRef()) {
      plan.per_head.push_back(fill_in(parsed(words.toStringRef()), facts, B));
    }
  }
  const auto add = [&](std::shared_ptr<ScoreStep> step) {
    plan.score.push_back(step.get());
    plan.owned.push_back(std::move(step));
  };
  const auto of_heads = [&](const char* name, int64_t dimensions) {
    const Tensor t = a.tensor(name, dimensions);
    if ((t.size(0) != H && t.size(0) != 1) || t.size(1) < 1) {
      fail("[attend.", name, "] expected one entry for each of ", H,
           " heads (or one) and at least one distance; found ", t.sizes());
    }
    return t;
  };
  if (a.tensor("factor").defined()) {
    add(std::make_shared<TableStep>(of_heads("factor", 2), a.integer("factor_from"), H, true, a.flag("factor_relu")));
  }
  if (a.tensor("table").defined()) {
    add(std::make_shared<TableStep>(of_heads("table", 2), a.integer("table_from"), H, false, false));
  }
  if (a.tensor("relative").defined()) {
    add(std::make_shared<RelativeStep>(of_heads("relative", 3), a.integer("relative_from"), a.number("relative_scale"),
                                       H));
  } else if (a.tensor("relative_q").defined()) {
    fail("[attend.relative] expected a tensor as relative_q is given; found None");
  }
  plan.dropout = a.number("dropout");
  plan.seed = static_cast<uint64_t>(a.integer("seed"));
  return plan;
}

std::vector<Tensor> run(const Arguments& a) {
  const Tensor q = a.tensor("q", 4), k = a.tensor("k", 4), v = a.tensor("v", 4);
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), S = k.size(2);
  const Places places(a, B, L, S);
  const AttendPlan plan = plan_of(a, B, H);
  std::vector<QueryBand> queries{{q, a.number("scale")}};
  Keys keys{k, v, places.at, places.document, a.tensor("sees_from"), a.tensor("sees_until")};
  std::vector<KeyBand> key_bands{{k}};
  const std::vector<Tensor> band_q = a.tensors("band_q"), band_k = a.tensors("band_k");
  const std::vector<int64_t> edges = a["band_edges"].isNone() ? std::vector<int64_t>{} : a["band_edges"].toIntVector();
  if (band_q.size() != edges.size() || band_k.size() != edges.size() || !std::is_sorted(edges.begin(), edges.end())) {
    fail("[attend.band_edges] expected as many rising edges as band_q and band_k; found ", edges.size(), ", ",
         band_q.size(), " and ", band_k.size());
  }
  for (size_t b = 0; b < edges.size(); ++b) {
    queries.back().farthest = edges[b];
    queries.push_back({band_q[b], a.number("scale"), edges[b], INT64_MAX});
    key_bands.push_back({band_k[b]});
  }
  const Tensor relative_q = a.tensor("relative_q");
  const Read read =
      attend(queries, relative_q.defined() ? relative_q : q, places.q_at, places.q_document, {keys}, {key_bands}, plan);
  // In the layout of the kernel: the heads of a token beside each other.
  return {read.out.transpose(1, 2).contiguous().transpose(1, 2), read.lse.contiguous()};
}

std::vector<Tensor> shapes(const Arguments& a) {
  const Tensor q = a.tensor("q", 4), v = a.tensor("v", 4);
  const auto B = q.sym_size(0), H = q.sym_size(1), L = q.sym_size(2);
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {at::empty_symint({B, L, H, v.sym_size(3)}, q.options()).transpose(1, 2),
          at::empty_symint({B, H, L}, q.options().dtype(type))};
}

const auto registered = register_operator(
    {"attend",
     "Tensor q, Tensor k, Tensor v, str pattern=\"causal\", *, float scale=0.0, Tensor? valid=None, "
     "Tensor? document=None, Tensor? position=None, Tensor? q_valid=None, Tensor? q_document=None, "
     "Tensor? q_position=None, Tensor? sees_from=None, Tensor? sees_until=None, Tensor? prefix=None, "
     "Tensor? global_positions=None, str[]? per_head=None, Tensor? factor=None, int factor_from=0, "
     "bool factor_relu=False, Tensor? table=None, int table_from=0, "
     "Tensor? relative=None, Tensor? relative_q=None, int relative_from=0, float relative_scale=1.0, "
     "Tensor[]? band_q=None, Tensor[]? band_k=None, int[]? band_edges=None, float dropout=0.0, SymInt seed=0",
     "(Tensor out, Tensor lse)",
     run,
     shapes,
     {"q", "k", "v", "band_q", "band_k"}});

}  // namespace
}  // namespace kinfolk
