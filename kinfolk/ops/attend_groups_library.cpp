// torch.ops.kinfolk.lsh_attend and routed_attend: attention among tokens that a hash or a centroid puts together.
//
// lsh_attend (Kitaev et al. 2020): qk [B, H, L, d] queries, whose directions are the keys, v [B, H, L, e], rotations
// [H, R, F, d, m] (ops/angular_hash.h) -> out [B, H, L, e].
//   buckets      n of a round; 0: the power of two from tokens / chunk on
//   same         only tokens of one bucket meet; wrap: what the first chunk has before it, "none", "round", "all"
//   by_bucket    chunks are counted within each bucket rather than cut from all that is sorted
//   once         a pair that several rounds put together counts once
// routed_attend (Roy et al. 2021): q, k (None: q) [B, H, L, d], v [B, H, L, e], centroids [H, K, d] -> out [B, H, L,
// e]; q and k as they are compared with centroids, so normalised before.
//   top          tokens that a centroid takes; 0: the tokens over K; mean: of what several read for a token, or the sum
// Of both: causal: no later token is met; valid bool, document int64 [B, L]: documents do not meet, tokens that are not
// valid meet nobody and read 0.
#include "kinfolk/core/errors.h"
#include "kinfolk/ops/angular_hash.h"
#include "kinfolk/ops/attend_groups.h"
#include "kinfolk/ops/operator_library.h"

namespace kinfolk {
namespace {

Sequences sequences(const Arguments& a, const Tensor& v) {
  const auto checked = [&](const char* name, at::ScalarType type) {
    const Tensor t = a.tensor(name);
    if (t.defined() && (t.scalar_type() != type || t.sizes() != at::IntArrayRef{v.size(0), v.size(2)})) {
      fail("[attend_groups.", name, "] expected ", type, " [", v.size(0), ", ", v.size(2), "]; found ", t.scalar_type(),
           " ", t.sizes());
    }
    return t;
  };
  return sequences_of(v.size(0), v.size(2), checked("valid", at::kBool), checked("document", at::kLong));
}

Tensor masked(const Tensor& out, const Tensor& valid) {
  return valid.defined() ? out.masked_fill(valid.logical_not().unsqueeze(1).unsqueeze(-1), 0) : out;
}

std::vector<Tensor> lsh(const Arguments& a) {
  const Tensor qk = a.tensor("qk", 4), v = a.tensor("v", 4), rotations = a.tensor("rotations", 5);
  const Sequences all = sequences(a, v);
  const std::string wrap = a["wrap"].toStringRef();
  if (wrap != "none" && wrap != "round" && wrap != "all") {
    fail("[lsh_attend.wrap] expected none, round or all; found ", wrap);
  }
  Cut cut{.chunk = a.integer("chunk"), .same = a.flag("same"), .by_code = a.flag("by_bucket")};
  cut.wrap = wrap == "none" ? Cut::Wrap::none : wrap == "round" ? Cut::Wrap::round : Cut::Wrap::all;
  const int64_t asked = a.integer("buckets"), columns = rotations.size(4);
  const int64_t most = rotations.size(2) > 1 ? 4 * columns * columns : 2 * columns;
  const Tensor code = angular_hash(qk, rotations, all, [&](int64_t tokens) {
    if (asked > 0) return asked;
    int64_t n = 2;
    while (n * cut.chunk < tokens && 2 * n <= most) n *= 2;
    return n;
  });
  const auto plan = std::make_shared<GroupPlan>();
  plan->causal = a.flag("causal"), plan->own = false, plan->once = a.flag("once");
  sort_groups(code, all, cut, *plan);
  const GroupRead read = attend_groups(qk, qk * at::rsqrt(qk.square().sum(-1, true) + 1e-20), v, plan);
  const Tensor out = at::where(read.lse.isneginf().unsqueeze(-1), v, read.out);  // who meets nobody reads itself
  return {masked(out, a.tensor("valid")).contiguous()};
}

std::vector<Tensor> routed(const Arguments& a) {
  const Tensor q = a.tensor("q", 4), given = a.tensor("k"), v = a.tensor("v", 4), centroids = a.tensor("centroids", 3);
  const Tensor k = given.defined() ? given : q;
  const auto affinities = [&](const Tensor& x) {
    return at::matmul(centroids.detach().to(x.scalar_type()), x.detach().transpose(2, 3));  // [B, H, K, L]
  };
  const Tensor of_queries = affinities(q), of_keys = given.defined() ? affinities(k) : of_queries;
  const auto plan = std::make_shared<GroupPlan>();
  plan->causal = a.flag("causal");
  top_groups(of_queries, of_keys, sequences(a, v), a.integer("top"), *plan);
  return {combine_groups(attend_groups(q, k, v, plan).out, *plan, a.flag("mean")).contiguous()};
}

std::vector<Tensor> shapes(const Arguments& a) {
  const Tensor v = a.tensor("v", 4);
  return {at::empty_symint(v.sym_sizes(), v.options())};
}

const auto registered_lsh =
    register_operator({"lsh_attend",
                       "Tensor qk, Tensor v, Tensor rotations, *, int chunk=64, int buckets=0, bool causal=True, "
                       "bool same=True, str wrap=\"none\", bool by_bucket=False, bool once=True, Tensor? valid=None, "
                       "Tensor? document=None",
                       "(Tensor out)",
                       lsh,
                       shapes,
                       {"qk", "v"}});
const auto registered_routed =
    register_operator({"routed_attend",
                       "Tensor q, Tensor? k, Tensor v, Tensor centroids, *, int top=0, bool causal=True, "
                       "bool mean=True, Tensor? valid=None, Tensor? document=None",
                       "(Tensor out)",
                       routed,
                       shapes,
                       {"q", "k", "v"}});

}  // namespace
}  // namespace kinfolk
