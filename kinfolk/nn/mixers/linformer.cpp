#include "kinfolk/nn/mixers/linformer.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

constexpr auto kWhyNot =
    "a projected key is a sum over all rows of the sequence, those after a query too, which no mask over the projected "
    "keys takes out again";

/// The rows of valid tokens, in order and from the first column on; `seen`: bool [B, n], the columns that are filled,
/// undefined when all are; `index`: int64 [B, n], where each was.
struct Rows {
  Tensor x, seen, index;
};
Rows rows_of(const Tensor& x, const Tensor& valid) {
  if (!valid.defined()) return {x, {}, {}};
  const Tensor count = valid.sum(1, true);  // [B, 1]
  const int64_t n = std::max<int64_t>(count.max().item<int64_t>(), 1);
  const Tensor index = std::get<1>(at::sort(valid.logical_not().to(at::kByte), true, 1, false)).narrow(1, 0, n);
  const Tensor seen = at::arange(n, count.options()).unsqueeze(0) < count;  // [B, n]
  const Tensor rows = x.gather(1, index.unsqueeze(-1).expand({-1, -1, x.size(2)}));
  return {rows.masked_fill(seen.logical_not().unsqueeze(-1), 0), seen, index};
}

}  // namespace

Linformer::Linformer(const Options& options, const Context& context)
    : heads_(head_count(options.heads, context)),
      width_(context.size.width / heads_),
      dropout_(options.dropout < 0 ? context.size.dropout : options.dropout) {
  if (options.causal) fail("[", context.path, ".causal] expected false: ", kWhyNot, "; found true");
  const int64_t D = context.size.width;
  q = register_module("q", std::make_shared<Linear>(context, D, D, options.bias));
  k = register_module("k", std::make_shared<Linear>(context, D, D, options.bias));
  v = register_module("v", std::make_shared<Linear>(context, D, D, options.bias));
  out = register_module("out", std::make_shared<Linear>(context, D, D, options.bias));
  Context mine = context;
  mine.heads.count = mine.heads.groups = heads_;
  mine.heads.width = width_;
  const auto made = [&](const Spec& spec, const char* key) {
    return registry<LengthProjection>().create(spec, mine, context.path.empty() ? key : context.path + "." + key);
  };
  if (options.share_kv && !options.project_values.empty()) {
    fail("[", context.path, ".project_values] expected none beside share_kv = true; found ",
         options.project_values.kind());
  }
  e = register_module("e", made(options.project, "project"));
  f = options.share_kv                 ? e
      : options.project_values.empty() ? made(options.project, "project")
                                       : made(options.project_values, "project_values");
  if (f != e) register_module("f", f);
  for (int64_t n = 1; n <= context.size.context; ++n) {
    if (e->slots(n) == f->slots(n)) continue;
    fail("[", context.path, ".project_values] expected as many slots as of keys, ", e->slots(n), " of ", n,
         " tokens; found ", f->slots(n));
  }
}

Traits Linformer::traits() const {
  Traits traits;
  traits.causal = traits.streams = false;
  traits.context = std::max(e->longest(), f->longest());
  traits.why_not = kWhyNot;
  return traits;
}

bool Linformer::early() const { return e->commutes() && f->commutes() && !k->bias.defined(); }

double Linformer::flops(int64_t length, int64_t) const {
  const int64_t D = heads_ * width_, slots = e->slots(length);
  const double projected = e->flops(length, D) + (f == e && early() ? 0 : f->flops(length, D));
  const int64_t rows = early() ? slots : length;
  return q->flops(length) + out->flops(length) + k->flops(rows) + v->flops(rows) + projected +
         4.0 * static_cast<double>(length) * static_cast<double>(slots) * static_cast<double>(D);
}

Linformer::Met Linformer::slots_of(const Tensor& x, const Tensor& seen) const {
  if (early()) {
    const LengthSlots of_k = e->project(x.unsqueeze(1), seen), of_v = f == e ? of_k : f->project(x.unsqueeze(1), seen);
    return {{to_heads(k->forward(of_k.rows.squeeze(1)), heads_), of_k.valid},
            {to_heads(v->forward(of_v.rows.squeeze(1)), heads_), of_v.valid}};
  }
  return {e->project(to_heads(k->forward(x), heads_), seen), f->project(to_heads(v->forward(x), heads_), seen)};
}

Tensor Linformer::meet(const Tensor& q, const Tensor& document, const std::vector<Met>& met, const Tensor& q_at,
                       double dropout, uint64_t seed) const {
  static const auto full = parse_pattern("full");
  AttendPlan plan;
  plan.pattern = full;
  plan.dropout = dropout, plan.seed = seed;
  std::vector<Keys> keys;
  std::vector<std::vector<KeyBand>> bands;
  const int64_t batch = q.size(0);
  for (size_t n = 0; n < met.size(); ++n) {
    Keys set;
    set.k = met[n].k.rows, set.v = met[n].v.rows;
    set.at = at::arange(set.k.size(2), q_at.options()).expand({batch, set.k.size(2)});
    // Of projections that differ a slot is met where both have it.
    for (const Tensor& valid : {met[n].k.valid, met[n].v.valid})
      if (valid.defined()) set.at = set.at.masked_fill(valid.logical_not(), -1);
    if (document.defined()) set.document = at::full_like(set.at, static_cast<int64_t>(n));
    bands.push_back({{set.k}});
    keys.push_back(std::move(set));
  }
  return attend({{q}}, q, q_at, document, keys, bands, plan).out;
}

Tensor Linformer::read(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& seen) const {
  const Tensor at = at::arange(q.size(2), q.options().dtype(at::kLong).requires_grad(false));
  return meet(q, {}, {{e->project(k, seen), f->project(v, seen)}}, at.expand({q.size(0), q.size(2)}), 0, 0);
}

Tensor Linformer::forward(const Tensor& x, Pass& pass, State* state) {
  if (state || pass.state)
    fail("[linformer] expected a whole sequence and no state, since ", kWhyNot, "; found a state");
  const int64_t length = x.size(1);
  if (length == 0) return x;
  const Tensor here = at::arange(length, x.options().dtype(at::kLong).requires_grad(false)).expand({x.size(0), length});
  const Tensor q_at = pass.valid.defined() ? here.masked_fill(pass.valid.logical_not(), -1) : here;
  const Rows rows = rows_of(x, pass.valid);
  std::vector<Met> met;
  if (pass.document.defined()) {
    const Tensor document = rows.index.defined() ? pass.document.gather(1, rows.index) : pass.document;  // [B, n]
    const int64_t last = document.max().item<int64_t>();
    for (int64_t m = 0; m <= last; ++m) {
      Tensor seen = document.eq(m);
      if (rows.seen.defined()) seen = seen.logical_and(rows.seen);
      met.push_back(slots_of(rows.x, seen));
    }
  } else {
    met.push_back(slots_of(rows.x, rows.seen));
  }
  const double dropped = is_training() ? dropout_ : 0;
  const uint64_t seed = dropped > 0 ? pass.seed * 0x9E3779B97F4A7C15ull + ++pass.draws : 0;
  const Tensor read = meet(to_heads(q->forward(x), heads_), pass.document, met, q_at, dropped, seed);  // [B, H, L, d]
  return mask_invalid(out->forward(from_heads(read)), pass);
}

std::string Linformer::explain() const {
  const int64_t longest = e->longest();
  return text("attend over ",
              longest > 0 ? text(e->slots(longest), " slots of at most ", longest, " tokens")
                          : text("a slot for every ", 64 / e->slots(64), " tokens"),
              early() ? ", reduced before the matrices of keys and values" : "", ", fused");
}

}  // namespace kinfolk
