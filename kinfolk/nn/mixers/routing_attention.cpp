#include "kinfolk/nn/mixers/routing_attention.h"

#include <ATen/autocast_mode.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

constexpr auto kLocal = "local", kRouting = "routing";  // parts of the state

/// The nearest centroid of each token: of [B, H, K, L] the first of the largest, int64 [B, H, L].
Tensor assigned(const Tensor& affinities) { return affinities.argmax(2); }

}  // namespace

RoutingAttention::RoutingAttention(const Options& options, const Context& context)
    : options_(options), heads_(head_count(options.heads, context)), width_(context.size.width / heads_) {
  const int64_t D = context.size.width;
  local_ = options.local < 0 ? heads_ / 2 : options.local;
  context_ = context.size.context;
  if (local_ >= heads_) fail("[", context.path, ".local] expected fewer than the heads ", heads_, "; found ", local_);
  const int64_t routing = heads_ - local_;
  const int64_t clusters = options.clusters > 0
                               ? options.clusters
                               : static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(context_))));
  q = register_module("q", std::make_shared<Linear>(context, D, D, options.bias));
  const int64_t keyed = shared() ? local_ : heads_;
  if (keyed > 0) k = register_module("k", std::make_shared<Linear>(context, D, keyed * width_, options.bias));
  v = register_module("v", std::make_shared<Linear>(context, D, D, options.bias));
  out = register_module("out", std::make_shared<Linear>(context, D, D, options.bias));
  centroids = register_buffer("centroids", draw_parameter(context, {routing, clusters, width_}, 1).detach());
  cache_ = {routing, width_, 1};
  Context of_window = context;
  of_window.heads = {.count = local_, .groups = local_, .width = width_};
  of_window.heads.horizon = options.window;
  window_ = std::make_shared<Cache>(Cache::Options{}, of_window);
  near_ = parse_pattern(text(options.causal ? "causal & " : "", "window(", options.window, ")"));
}

Traits RoutingAttention::traits() const {
  Traits traits;
  traits.relative = true;
  traits.streams = traits.causal = options_.causal && nearest();
  if (!options_.causal) {
    traits.why_not = "a token meets later ones of its cluster, so the sequence must be whole";
  } else if (!traits.causal) {
    traits.why_not =
        "each centroid takes the nearest tokens of the whole sequence: no later value is read, but later tokens decide "
        "which earlier ones are met";
  }
  return traits;
}

State RoutingAttention::start(int64_t batch, at::TensorOptions like) const {
  State state;
  if (!traits().streams) return state;
  if (local_ > 0) state.parts[kLocal] = window_->start(batch, like);
  state.parts[kRouting] = cache_.start(batch, like);
  return state;
}

std::string RoutingAttention::truncate(State& state, int64_t lane, int64_t position, int64_t newest) const {
  if (!traits().streams) return traits().why_not;
  if (local_ > 0) {
    if (const auto why = window_->truncate(state.parts.at(kLocal), lane, position, newest); !why.empty()) return why;
  }
  return cache_.truncate(state.parts.at(kRouting), lane, position);
}

int64_t RoutingAttention::most_bytes(int64_t /*batch*/, at::TensorOptions /*like*/, int64_t /*newest*/) const {
  return traits().streams ? -1 : 0;  // chunks are counted from the first token on: none may be forgotten
}

double RoutingAttention::flops(int64_t length, int64_t from) const {
  const auto d = static_cast<double>(width_), K = static_cast<double>(centroids.size(1));
  const auto routing = static_cast<double>(heads_ - local_);
  const double met = static_cast<double>(options_.top > 0 ? options_.top : context_) / (options_.top > 0 ? 1 : K);
  double near = 0, far = 0;
  for (int64_t t = from; t < from + length; ++t) {
    const auto before = static_cast<double>(t + 1);
    near += options_.causal ? std::min(before, static_cast<double>(options_.window))
                            : static_cast<double>(2 * options_.window - 1);
    far += nearest() ? std::min(before, 1.5 * met) : options_.causal ? std::min(before, met / 2) : met;
  }
  return q->flops(length) + (k ? k->flops(length) : 0) + v->flops(length) + out->flops(length) +
         4 * d * (near * static_cast<double>(local_) + far * routing) +
         (shared() ? 2 : 4) * routing * K * d * static_cast<double>(length);
}

StateKnob RoutingAttention::state_knob() const {
  return {.why_not = traits().streams ? "its state grows with the text" : "it keeps no state"};
}

std::string RoutingAttention::explain() const {
  const char* how = q->weight.scalar_type() == at::kDouble ? "loops in Double" : "fused";
  return text(heads_ - local_, " heads attend_groups, ", how, ": ", centroids.size(1), " centroids, ",
              nearest() ? "each token to its nearest" : "each takes its nearest", "; ", local_, " heads attend(",
              near_->text(), ")");
}

Tensor RoutingAttention::read(const Tensor& queries, const Tensor& keys, const Tensor& values, Pass& pass,
                              State* state) {
  const Sequences sequences = sequences_of(queries.size(0), queries.size(2), pass.valid, pass.document);
  const auto normalised = [&](const Tensor& x) {
    return at::layer_norm(x.to(centroids.scalar_type() == at::kDouble ? at::kDouble : at::kFloat), {width_});
  };
  const Tensor a = normalised(queries), b = keys.defined() ? normalised(keys) : a;
  const auto plan = std::make_shared<GroupPlan>();
  plan->causal = options_.causal;
  Tensor met_keys = b, met_values = values.to(a.scalar_type());
  Tensor code;
  {
    const at::NoGradGuard guard;
    const c10::impl::ExcludeDispatchKeyGuard own_types(c10::autocast_dispatch_keyset);
    const auto affinities = [&](const Tensor& x) {
      return at::matmul(centroids.to(x.scalar_type()), x.detach().transpose(2, 3));  // [B, H, K, L]
    };
    const Tensor of_queries = affinities(a), of_keys = keys.defined() ? affinities(b) : of_queries;
    if (nearest()) {
      code = assigned(of_queries).unsqueeze(2);  // [B, H, 1, L]
    } else {
      top_groups(of_queries, of_keys, sequences, options_.top, *plan);
    }
  }
  if (nearest()) {
    Sequences all = sequences;
    if (state) {
      auto met = cache_.meet(b, met_values, code, pass, state->parts[kRouting]);
      met_keys = met.k, met_values = met.v, code = met.code, all = std::move(met.sequences), plan->first = met.first;
    }
    const int64_t usual = (context_ + centroids.size(1) - 1) / centroids.size(1);
    sort_groups(code, all, {.chunk = options_.top > 0 ? options_.top : usual, .by_code = true}, *plan);
  }
  if (is_training()) learn(a, b, pass);
  const GroupRead read = attend_groups(a, met_keys, met_values, plan);
  const Tensor o = nearest() ? read.out : combine_groups(read.out, *plan, options_.combine == "mean");
  return o.to(values.scalar_type());
}

void RoutingAttention::learn(const Tensor& queries, const Tensor& keys, Pass& pass) const {
  if (!pass.updates) return;
  const at::NoGradGuard guard;
  const int64_t H = centroids.size(0), K = centroids.size(1);
  Tensor sum = at::zeros_like(centroids), count = at::zeros({H, K, 1}, centroids.options());
  const auto add = [&](const Tensor& given) {
    const Tensor x = given.detach().to(centroids.scalar_type());  // [B, H, L, d]
    const Tensor code = assigned(at::matmul(centroids, x.transpose(2, 3)));
    Tensor one = at::ones({x.size(0), 1, x.size(2), 1}, x.options());
    if (pass.valid.defined()) one = pass.valid.to(x.scalar_type()).unsqueeze(1).unsqueeze(-1);
    const Tensor row = (code + at::arange(H, code.options()).view({1, H, 1}) * K).reshape(-1);
    sum.view({H * K, width_}).index_add_(0, row, (x * one).reshape({-1, width_}));
    count.view({H * K, 1}).index_add_(0, row, one.expand({x.size(0), H, x.size(2), 1}).reshape({-1, 1}));
  };
  add(queries);
  if (keys.is_same(queries)) {
    sum.mul_(2), count.mul_(2);
  } else {
    add(keys);
  }
  pass.updates->push_back([mu = centroids, sum, count, decay = options_.decay, mean = options_.update == "mean"] {
    const at::NoGradGuard still;
    if (!mean) {
      mu.mul_(decay).add_(sum, (1 - decay) / 2);
    } else {
      mu.copy_(at::where(count.gt(0), decay * mu + (1 - decay) * sum / count.clamp_min(1), mu));
    }
  });
}

Tensor RoutingAttention::read_near(const Tensor& queries, const Tensor& keys, const Tensor& values, Pass& pass,
                                   State* state) {
  const Tensor at = valid_positions(pass);
  AttendPlan plan;
  plan.pattern = near_;
  Eyes eyes;
  eyes.prepare_keys = [](const Tensor& k, const Tensor&) { return std::vector<Tensor>{k}; };
  eyes.look = [&](const Tensor& q, const std::vector<Keys>& sets, const Look&) {
    const auto type = q.scalar_type();
    std::vector<Keys> met = sets;
    std::vector<std::vector<KeyBand>> bands;
    for (Keys& set : met) {
      set.v = set.v.to(type);
      bands.push_back({{set.k.to(type)}});
    }
    return attend({QueryBand{.q = q}}, q, at, pass.document, met, bands, plan);
  };
  State* own = state ? &state->parts[kLocal] : nullptr;
  return window_->meet({{}, queries, keys, values}, eyes, pass, own).out;
}

Tensor RoutingAttention::forward(const Tensor& given, Pass& pass, State* state) {
  if ((state || pass.state) && !traits().streams) {
    fail("[routing] expected a whole sequence without a state; found one: ", traits().why_not);
  }
  if (given.size(1) == 0) return given;
  const int64_t routing = heads_ - local_;
  const Tensor x = mask_invalid(given, pass);  // [B, L, D]
  const Tensor queries = to_heads(q->forward(x), heads_), values = to_heads(v->forward(x), heads_);
  const Tensor keys = k ? k->forward(x).unflatten(-1, {-1, width_}).transpose(1, 2) : Tensor();
  std::vector<Tensor> reads;
  if (local_ > 0) {
    reads.push_back(
        read_near(queries.narrow(1, 0, local_), keys.narrow(1, 0, local_), values.narrow(1, 0, local_), pass, state));
  }
  reads.push_back(read(queries.narrow(1, local_, routing), shared() ? Tensor() : keys.narrow(1, local_, routing),
                       values.narrow(1, local_, routing), pass, state));
  return mask_invalid(out->forward(from_heads(at::cat(reads, 1))), pass);
}

}  // namespace kinfolk
