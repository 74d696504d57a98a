#include "kinfolk/nn/mixers/attention.h"

#include "kinfolk/ops/affine.h"
#include "kinfolk/pattern/views.h"

namespace kinfolk {
namespace {

/// [B, S, n d] -> [B, n, S, d]
Tensor split_heads(const Tensor& x, int64_t d) { return x.unflatten(-1, {-1, d}).transpose(1, 2); }

/// Makes the components of a slot and registers them as `slot.0`, `slot.1`, ...
template <class Base>
std::vector<std::shared_ptr<Base>> make_steps(torch::nn::Module& owner, const std::string& slot,
                                              const std::vector<Spec>& specs, const Context& context) {
  std::vector<std::shared_ptr<Base>> steps;
  if (specs.empty()) return steps;
  const auto list = owner.register_module(slot, std::make_shared<torch::nn::Module>(slot));
  for (size_t n = 0; n < specs.size(); ++n) {
    const std::string path = text(context.path.empty() ? "" : context.path + ".", slot, "[", n, "]");
    steps.push_back(registry<Base>().create(specs[n], context, path));
    list->register_module(std::to_string(n), steps.back());
  }
  return steps;
}

/// The stages that occur among valid queries; undefined `stage`: one.
std::vector<int64_t> stages_of(const Tensor& stage, const Tensor& at) {
  if (!stage.defined()) return {0};
  const Tensor found = stage.masked_select(at.ge(0)), low = found.numel() ? found.min() : found;
  if (found.numel() == 0 || found.eq(low).all().item<bool>()) return {found.numel() ? low.item<int64_t>() : 0};
  const Tensor each = std::get<0>(at::_unique(found, true)).to(at::kCPU);
  return {each.const_data_ptr<int64_t>(), each.const_data_ptr<int64_t>() + each.numel()};
}

HeadPatterns parse_patterns(const Attention::Options& options, int64_t heads, const Context& context) {
  HeadPatterns out;
  if (options.per_head.empty()) {
    out.each.push_back(parse_pattern(options.pattern, &context.let));
    return out;
  }
  if (options.pattern != Attention::Options{}.pattern) {
    fail("[", context.path, ".per_head] expected pattern or per_head; found both");
  }
  const auto many = static_cast<int64_t>(options.per_head.size());
  if (heads % many != 0) {
    fail("[", context.path, ".per_head] expected patterns in a number that divides ", heads, " heads; found ", many);
  }
  for (const auto& words : options.per_head) out.each.push_back(parse_pattern(words, &context.let));
  return out;
}

}  // namespace

Attention::Attention(const Options& options, const Context& context) {
  const int64_t width = context.size.width;
  heads_.count = options.heads == 0 ? context.size.heads : options.heads;
  heads_.groups = options.groups == 0 ? heads_.count : options.groups;
  heads_.width = options.head_width == 0 ? width / heads_.count : options.head_width;
  if (options.head_width == 0 && width % heads_.count != 0) {
    fail("[", context.path, ".heads] expected a divisor of the width ", width, "; found ", heads_.count);
  }
  if (heads_.count % heads_.groups != 0) {
    fail("[", context.path, ".groups] expected a divisor of the heads ", heads_.count, "; found ", heads_.groups);
  }
  heads_.scale = options.scale == 0 ? 1 / std::sqrt(static_cast<double>(heads_.width)) : options.scale;
  pattern_ = parse_patterns(options, heads_.count, context);
  heads_.causal = pattern_.causal(), heads_.relative = pattern_.relative();
  heads_.horizon = heads_.causal ? pattern_.horizon().value_or(-1) : -1;
  dropout_ = options.dropout < 0 ? context.size.dropout : options.dropout;

  const int64_t inner = heads_.count * heads_.width, grouped = heads_.groups * heads_.width;
  q = register_module("q", std::make_shared<Linear>(context, width, inner, options.bias));
  k = register_module("k", std::make_shared<Linear>(context, width, grouped, options.bias));
  v = register_module("v", std::make_shared<Linear>(context, width, grouped, options.bias));
  out = register_module("out", std::make_shared<Linear>(context, inner, width, options.bias));

  Context mine = context;
  mine.heads = heads_;
  qk = make_steps<QkStep>(*this, "qk", options.qk, mine);
  score = make_steps<Score>(*this, "score", options.score, mine);
  const auto gives_values = [](const auto& step) { return step->adds_to_values().has_value(); };
  if (std::count_if(score.begin(), score.end(), gives_values) > 1) {
    fail("[", context.path, ".score] expected one step that adds to values; found several");
  }
  if (std::count_if(score.begin(), score.end(), [](const auto& step) { return step->query_columns() > 0; }) > 1) {
    fail("[", context.path, ".score] expected one step that reads the branch's input; found several");
  }
  const Tensor nowhere = at::zeros({1, 0}, at::kLong);
  for (size_t n = 0; n < qk.size(); ++n) {
    keys_final_ = keys_final_ && qk[n]->keys_final();
    if (!qk[n]->stage(nowhere).defined()) continue;
    if (staged_) {
      fail("[", context.path, ".qk[", n, "]] expected one step whose keys depend on the query; found a second");
    }
    staged_ = qk[n].get();
    keys_final_ = keys_final_ && n + 1 == qk.size();  // later steps would see keys of another stage
  }
  choose_kept(context);
  mine.heads = heads_;
  memory = registry<Memory>().create(options.memory, mine, context.path.empty() ? "memory" : context.path + ".memory");
  register_module("memory", memory);
}

void Attention::choose_kept(const Context& context) {
  if (!keys_final_) return;
  const at::NoGradGuard no_grad;
  const auto made = bands(at::zeros({1, heads_.count, 0, heads_.width}, context.like),
                          at::zeros({1, 0}, context.like.dtype(at::kLong)));
  for (size_t n = 0; n < made.size(); ++n)
    if (shown(made[n])) kept_.push_back(n);
  keys_final_ = kept_.size() == 1 || (kept_.size() > 1 && heads_.causal && !staged_);
  if (!keys_final_) return kept_.clear();
  std::sort(kept_.begin(), kept_.end(), [&](size_t a, size_t b) { return made[a].farthest > made[b].farthest; });
  for (size_t n = 1; n < kept_.size(); ++n) {
    const int64_t newest = made[kept_[n]].farthest;
    heads_.near.push_back(heads_.horizon < 0 ? newest : std::min(newest, heads_.horizon));
  }
}

Traits Attention::traits() const {
  Traits traits = memory->traits();
  traits.causal = pattern_.causal();
  traits.streams = traits.causal && traits.streams;
  traits.relative = traits.relative && pattern_.relative();
  for (const auto& step : qk) traits.relative = traits.relative && step->relative();
  for (const auto& step : score) traits.relative = traits.relative && step->relative();
  if (!traits.causal) {
    traits.bounded = false;
    traits.why_not = text("the pattern ", pattern_.text(), " sees the future, so the sequence must be whole");
  }
  return traits;
}

State Attention::start(int64_t batch, at::TensorOptions like) const { return memory->start(batch, like); }

double Attention::flops(int64_t length, int64_t from) const {
  const double seen = pattern_.pairs(from, length, [this](int64_t t) { return memory->seen(t); });
  return q->flops(length) + k->flops(length) + v->flops(length) + out->flops(length) +
         4 * seen * static_cast<double>(heads_.count * heads_.width) + memory->flops(length, from);
}

Eyes::KeyValue Attention::project(const Tensor& x) const {
  return {split_heads(k->forward(x), heads_.width), split_heads(v->forward(x), heads_.width)};
}

Eyes::Constant Attention::project_constant(const Tensor& x) const {
  const auto constant = [&](const Linear& linear) {
    const Tensor bias = linear.bias.defined() ? linear.bias.detach() : Tensor();
    return split_heads(affine(x, linear.weight.detach(), bias), heads_.width);
  };
  return {constant(*q), constant(*k), constant(*v)};
}

std::vector<QueryBand> Attention::bands(const Tensor& q, const Tensor& at) {
  std::vector<QueryBand> bands{{.q = q, .scale = heads_.scale}};
  for (const auto& step : qk) {
    std::vector<QueryBand> next;
    for (const auto& band : bands)
      for (auto& made : step->queries(band, at)) next.push_back(std::move(made));
    bands = std::move(next);
  }
  return bands;
}

std::vector<KeyBand> Attention::key_bands(const Tensor& k, const Tensor& at, std::optional<int64_t> stage) {
  std::vector<KeyBand> bands{{k}};
  for (const auto& step : qk) {
    std::vector<KeyBand> next;
    for (const auto& band : bands)
      for (auto& made : stage ? step->keys_for(band, at, *stage) : step->keys(band, at))
        next.push_back(std::move(made));
    bands = std::move(next);
  }
  return bands;
}

std::vector<Tensor> Attention::prepare_keys(const Tensor& k, const Tensor& at) {
  if (!keys_final_) return {k};
  const auto made = key_bands(k, at, {});
  std::vector<Tensor> out;
  for (const size_t n : kept_) out.push_back(made.at(n).k);
  return out;
}

bool Attention::shown(const QueryBand& band) const {
  return band.nearest < band.farthest && band.nearest <= pattern_.farthest() && band.farthest > pattern_.nearest();
}

Read Attention::look(const Tensor& q, const Tensor& at, const Tensor& document, std::vector<Keys> keys, const Look& how,
                     double dropout, uint64_t seed, const std::map<std::string, Tensor>& facts,
                     const Tensor& of_queries) {
  const std::vector<QueryBand> all = bands(q, at);
  std::vector<QueryBand> queries;  // without those at distances that the pattern never shows
  for (const auto& band : all)
    if (shown(band)) queries.push_back(band);
  std::vector<Keys> looked;  // for each stage of the queries
  std::vector<std::vector<KeyBand>> sets;
  const Tensor stage = staged_ ? staged_->stage(at) : Tensor();
  const auto stages = stages_of(stage, at);
  const Tensor shifted = how.shift == 0 ? at : at::where(at.lt(0), at, at + how.shift);
  for (size_t s = 0; s < keys.size(); ++s) {
    const Keys& set = keys[s];
    const Tensor true_at = how.shift == 0 ? set.at : set.at - how.shift;
    for (const int64_t m : stages) {
      std::vector<KeyBand> made(all.size());
      if (how.prepared && keys_final_) {
        const size_t n = kept_.at(how.kept.empty() ? 0 : how.kept.at(s));
        made.at(n) = staged_ ? staged_->keys_again({set.k}, true_at, m) : KeyBand{set.k};
      } else {
        made = key_bands(set.k, true_at, m);
      }
      if (made.size() != all.size()) {
        fail("[attention.qk] expected as many bands of keys as of queries, ", all.size(), "; found ", made.size());
      }
      std::vector<KeyBand> used;
      for (size_t n = 0; n < all.size(); ++n)
        if (shown(all[n])) used.push_back(made[n]);
      Keys seen = set;
      if (stages.size() > 1) {
        const Tensor until = set.until.defined() ? set.until : at::full_like(at, INT64_MAX);
        seen.until = at::where(stage.eq(m), until, 0);
      }
      looked.push_back(seen);
      sets.push_back(used);
    }
  }
  AttendPlan plan;
  set_pattern(plan, pattern_.with(facts, at.size(0)));
  for (const auto& step : score) plan.score.push_back(step.get());
  plan.dropout = dropout;
  plan.seed = seed;
  const Tensor q_raw = of_queries.defined() ? at::cat({q.to(of_queries.scalar_type()), of_queries}, -1) : q;
  return attend(queries, q_raw, shifted, document, looked, sets, plan);
}

Tensor Attention::forward(const Tensor& x, Pass& pass, State* state) {
  if (state && !pattern_.causal()) {
    fail("[attention.pattern] expected a causal pattern where a state is carried; found ", pattern_.text());
  }
  if (x.size(1) == 0) return x;
  if (!pass.position.defined()) fail("[attention] expected positions in the pass; found none");
  const Tensor at =
      pass.valid.defined() ? pass.position.masked_fill(pass.valid.logical_not(), -1) : pass.position;  // [B, L]
  const Eyes::KeyValue made = project(x);
  const Fresh fresh{x, split_heads(q->forward(x), heads_.width), made.k, made.v};
  Tensor of_queries;
  for (const auto& step : score)
    if (step->query_columns() > 0) of_queries = step->of_queries(x, pass);
  const double dropped = is_training() ? dropout_ : 0;
  const uint64_t seed = dropped > 0 ? pass.seed * 0x9E3779B97F4A7C15ull + ++pass.draws : 0;
  const Eyes eyes{[this](const Tensor& x) { return project(x); },
                  [this](const Tensor& k, const Tensor& at) { return prepare_keys(k, at); },
                  [&](const Tensor& q, std::vector<Keys> keys, Look how) {
                    return look(q, at, pass.document, std::move(keys), how, dropped, seed, pass.batch.facts,
                                of_queries);
                  },
                  [this](const Tensor& x) { return project_constant(x); }};
  const Read read = memory->meet(fresh, eyes, pass, state);
  for (const auto& step : score) step->add_losses(pass);
  return mask_invalid(out->forward(read.out.transpose(1, 2).flatten(2)), pass);  // [B, L, D]
}

void Attention::set_pattern(AttendPlan& plan, const HeadPatterns& patterns) const {
  plan.pattern = patterns.each[0];
  if (patterns.each.size() > 1) plan.per_head = patterns.each;
}

std::string Attention::explain() const {
  at::NoGradGuard no_grad;
  auto* self = const_cast<Attention*>(this);  // steps are not const, but keep nothing
  const auto like = q->weight.options();
  const auto whole = like.dtype(at::kLong);
  const Tensor at = at::arange(2, whole).unsqueeze(0);
  auto queries = self->bands(at::zeros({1, heads_.count, 2, heads_.width}, like), at);
  std::erase_if(
      queries, [&](const QueryBand& b) { return b.nearest > pattern_.farthest() || b.farthest <= pattern_.nearest(); });
  const auto here = at::TensorOptions().dtype(like.dtype());  // a meta model is explained as if it had memory
  for (auto& band : queries) band.q = at::zeros({1, heads_.count, 2, heads_.width}, here);
  const Tensor kv = at::zeros({1, heads_.groups, 2, heads_.width}, here);
  AttendPlan plan;
  for (const auto& step : score) plan.score.push_back(step.get());
  std::string line = text("attend(", pattern_.text(), ")");
  std::vector<std::string> reasons;
  size_t views = 0;
  for (const auto& pattern : pattern_.each) {
    plan.pattern = pattern;
    for (const auto& why :
         why_not_fused(queries, {{kv, kv, at::arange(2, here.dtype(at::kLong)).unsqueeze(0), {}, {}, {}}}, plan))
      if (std::find(reasons.begin(), reasons.end(), why) == reasons.end()) reasons.push_back(why);
    if (!pattern->interval()) views = std::max(views, compile(pattern).value_or(std::vector<View>{}).size());
  }
  if (reasons.empty()) line += ", fused";
  if (views > 1) line += text(reasons.empty() ? " " : ", ", "in up to ", views, " views");
  if (!reasons.empty()) line += ", tiled torch operators: ";
  for (size_t n = 0; n < reasons.size(); ++n) line += (n ? "; " : "") + reasons[n];
  if (const std::string said = memory->explain(); !said.empty()) line += "; " + said;
  return line;
}

}  // namespace kinfolk
