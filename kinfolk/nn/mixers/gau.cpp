#include "kinfolk/nn/mixers/gau.h"

#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/ops/relu_attend.h"
#include "kinfolk/pattern/heads.h"

namespace kinfolk {

Gau::Gau(const Options& options, const Context& context) : options_(options) {
  const int64_t width = context.size.width, s = options.key_width;
  const int64_t inner = options.inner > 0 ? options.inner : std::max<int64_t>(1, context.size.feed / 2);
  pattern_ = parse_pattern(options.pattern, &context.let);
  u = register_module("u", std::make_shared<Linear>(context, width, inner, false));
  v = register_module("v", std::make_shared<Linear>(context, width, inner, false));
  z = register_module("z", std::make_shared<Linear>(context, width, s, false));
  out = register_module("out", std::make_shared<Linear>(context, inner, width, false));
  gamma = register_parameter("gamma", fill_parameter(context, {2, s}, 1));
  beta = register_parameter("beta", fill_parameter(context, {2, s}, 0));

  Context mine = context;
  mine.heads = {.count = 1, .groups = 1, .width = s, .scale = 1 / std::sqrt(static_cast<double>(s))};
  mine.heads.value_width = inner;
  mine.heads.causal = pattern_->causal();
  mine.heads.horizon = mine.heads.causal ? pattern_->horizon().value_or(-1) : -1;
  const Tensor nowhere = at::zeros({1, 0}, at::kLong);
  const auto list = options.qk.empty() ? nullptr : register_module("qk", std::make_shared<torch::nn::Module>("qk"));
  for (size_t n = 0; n < options.qk.size(); ++n) {
    const std::string path = text(context.path.empty() ? "" : context.path + ".", "qk[", n, "]");
    qk.push_back(registry<QkStep>().create(options.qk[n], mine, path));
    list->register_module(std::to_string(n), qk.back());
    if (qk.back()->stage(nowhere).defined()) {
      fail("[", path, "] expected a step whose keys do not depend on the query; found ", options.qk[n].kind());
    }
  }
  memory = register_module("memory", std::make_shared<Cache>(Cache::Options{}, mine));
  if (options.form.rfind("relu", 0) == 0) {
    const at::NoGradGuard guard;
    const size_t bands =
        query_bands(at::zeros({1, 1, 0, s}, context.like), nowhere.to(context.like.device()), 1).size();
    if (bands != 1) {
      fail("[", context.path, ".qk] expected one band of distances with form \"", options.form, "\"; found ", bands);
    }
  }
}

Traits Gau::traits() const {
  Traits traits = memory->traits();
  traits.causal = pattern_->causal();
  traits.relative = pattern_->relative();
  for (const auto& step : qk) traits.relative = traits.relative && step->relative();
  if (options_.form == "relu2_n") {
    traits.streams = false;
    traits.why_not = "form \"relu2_n\" divides by the length of the whole sequence";
  }
  if (!traits.causal) {
    traits.streams = false;
    traits.why_not = text("the pattern ", pattern_->text(), " sees the future, so the sequence must be whole");
  }
  traits.bounded = traits.bounded && traits.streams;
  return traits;
}

double Gau::flops(int64_t length, int64_t from) const {
  const double pairs = HeadPatterns{{pattern_}}.pairs(from, length, [](int64_t t) { return t + 1; });
  return u->flops(length) + v->flops(length) + z->flops(length) + out->flops(length) +
         2 * pairs * static_cast<double>(gamma.size(1) + u->weight.size(0));
}

std::vector<QueryBand> Gau::query_bands(const Tensor& q, const Tensor& at, double scale) {
  std::vector<QueryBand> bands{{.q = q, .scale = scale}};
  for (const auto& step : qk) {
    std::vector<QueryBand> next;
    for (const auto& band : bands)
      for (auto& made : step->queries(band, at)) next.push_back(std::move(made));
    bands = std::move(next);
  }
  return bands;
}

std::vector<KeyBand> Gau::key_bands(const Tensor& k, const Tensor& at) {
  std::vector<KeyBand> bands{{k}};
  for (const auto& step : qk) {
    std::vector<KeyBand> next;
    for (const auto& band : bands)
      for (auto& made : step->keys(band, at)) next.push_back(std::move(made));
    bands = std::move(next);
  }
  return bands;
}

Read Gau::look(const Tensor& q, const Tensor& at, const Pass& pass, Keys keys) {
  auto pattern = fill_in(pattern_, pass.batch.facts, at.size(0));
  if (std::exchange(keys.from, {}).defined()) {  // the newest keys alone, as the cache says
    pattern = parse_pattern(text("(", pattern->text(), ") & window(", pass.newest, ")"));
  }
  const auto s = static_cast<double>(gamma.size(1));
  const auto made = key_bands(keys.k, keys.at);
  if (options_.form == "softmax" || options_.form == "softmax_plus") {
    Tensor scaled = q;
    if (options_.form == "softmax_plus") {
      const Tensor n = visible_keys(at, pass.document, keys, pattern);  // [B, 1, L]
      const Tensor factor = n.clamp_min(1).log() / std::log(static_cast<double>(options_.trained));
      scaled = q * factor.unsqueeze(-1).to(q.scalar_type());
    }
    AttendPlan plan;
    plan.pattern = pattern;
    return attend(query_bands(scaled, at, 1 / std::sqrt(s)), q, at, pass.document, {keys}, {made}, plan);
  }
  double scale = 1;
  Tensor divisor;  // [B, 1, L]
  Keys used = keys;
  used.k = made.at(0).k;
  Tensor queries;
  const auto band = query_bands(q, at, 1).at(0);
  if (band.scale != 1) scale = band.scale;
  if (options_.form == "relu2_n") {
    const auto full = parse_pattern("full");
    const Tensor n = visible_keys(at, pass.document, keys, full);
    divisor = n.square();
  }
  const ReluRead read = relu_attend(band.q, at, pass.document, used, pattern, scale);
  if (!divisor.defined()) divisor = read.count * s;
  return {read.out / divisor.clamp_min(1).unsqueeze(-1).to(read.out.scalar_type()), {}};
}

Tensor Gau::forward(const Tensor& x, Pass& pass, State* state) {
  if (state && !traits().streams) fail("[gau] expected a whole sequence; found a state: ", traits().why_not);
  if (x.size(1) == 0) return x;
  if (!pass.position.defined()) fail("[gau] expected positions in the pass; found none");
  const Tensor at = valid_positions(pass);
  const Tensor base = at::silu(z->forward(x));                                             // [B, L, s]
  const auto moved = [&](int64_t n) { return (base * gamma[n] + beta[n]).unsqueeze(1); };  // [B, 1, L, s]
  const Fresh fresh{x, moved(0), moved(1), at::silu(v->forward(x)).unsqueeze(1)};
  const Eyes eyes{{},
                  [](const Tensor& k, const Tensor&) { return std::vector<Tensor>{k}; },
                  [&](const Tensor& q, std::vector<Keys> keys, Look) { return look(q, at, pass, keys.at(0)); }};
  const Tensor read = memory->meet(fresh, eyes, pass, state).out.squeeze(1);  // [B, L, e]
  return mask_invalid(out->forward(at::silu(u->forward(x)) * read), pass);    // [B, L, D]
}

std::string Gau::explain() const {
  if (options_.form.rfind("softmax", 0) != 0) {
    return text("relu_attend(", pattern_->text(),
                "), one head, tiled torch operators: no kernel has the squared ReLU for weights");
  }
  const auto like = at::TensorOptions().dtype(gamma.dtype());  // a meta model is explained as if it had memory
  const Tensor q = at::zeros({1, 1, 2, gamma.size(1)}, like), values = at::zeros({1, 1, 2, v->weight.size(0)}, like);
  AttendPlan plan;
  plan.pattern = pattern_;
  const auto reasons =
      why_not_fused({{q}}, {{q, values, at::arange(2, like.dtype(at::kLong)).unsqueeze(0), {}, {}, {}}}, plan);
  std::string line = text("attend(", pattern_->text(), "), one head, ", reasons.empty() ? "fused" : "");
  for (size_t n = 0; n < reasons.size(); ++n) line += (n ? "; " : "tiled torch operators: ") + reasons[n];
  return line;
}

}  // namespace kinfolk
