#include "kinfolk/nn/mixers/feature_attention.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/feature/directions.h"
#include "kinfolk/nn/mixers/feature_sums.h"
#include "kinfolk/nn/mixers/heads.h"

namespace kinfolk {

FeatureAttention::FeatureAttention(const Shape& shape, const Context& context)
    : shape_(shape), heads_(head_count(shape.heads, context)), width_(context.size.width / heads_) {
  const int64_t D = context.size.width;
  q_ = register_module("q", std::make_shared<Linear>(context, D, D, shape.bias));
  k_ = register_module("k", std::make_shared<Linear>(context, D, D, shape.bias));
  v_ = register_module("v", std::make_shared<Linear>(context, D, D, shape.bias));
  out_ = register_module("out", std::make_shared<Linear>(context, D, D, shape.bias));
  Tensor w = at::zeros({heads_, shape.features, width_}, context.like);
  if (!w.is_meta()) {
    w.copy_(random_directions(heads_, shape.features, width_, shape.orthogonal, context.generator) * shape.deviation);
  }
  directions_ = register_buffer("directions", w);
}

Traits FeatureAttention::traits() const {
  Traits traits;
  traits.causal = shape_.causal;
  traits.relative = true;
  traits.streams = traits.bounded = traits.carries = shape_.causal && shape_.streams;
  if (!shape_.causal) {
    traits.why_not = "it reads the whole sequence at once, what comes later too";
  } else if (!shape_.streams) {
    traits.why_not = "its stabiliser is the largest of all keys, those that come later too";
  }
  return traits;
}

State FeatureAttention::start(int64_t batch, at::TensorOptions like) const {
  State state;
  if (!shape_.causal || !shape_.streams) return state;
  const int64_t F = shape_.columns, columns = shape_.positive ? width_ : width_ + 1;
  state.tensors[kState] = at::zeros({batch, heads_, F, columns}, state_options(like));
  if (shape_.positive) state.tensors[kSum] = at::zeros({batch, heads_, F}, state_options(like));
  return state;
}

double FeatureAttention::flops(int64_t length, int64_t) const {
  const double d = static_cast<double>(width_), tokens = static_cast<double>(length);
  const double F = static_cast<double>(shape_.columns), M = static_cast<double>(shape_.features);
  return q_->flops(length) + k_->flops(length) + v_->flops(length) + out_->flops(length) +
         tokens * static_cast<double>(heads_) * (4 * M * d + 4 * F * d + 2 * F);
}

void FeatureAttention::redraw(Pass& pass) {
  if (shape_.redraw == 0 || !is_training() || !pass.updates) return;
  if (++calls_ % shape_.redraw != 0) return;
  const uint64_t seed = pass.seed + 0x9e3779b97f4a7c15ULL * ++pass.draws;
  pass.updates->push_back([this, seed] {
    const at::NoGradGuard guard;
    directions_.copy_(
        random_directions(heads_, shape_.features, width_, shape_.orthogonal, at::detail::createCPUGenerator(seed)) *
        shape_.deviation);
  });
}

Tensor FeatureAttention::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);  // [B, L, D]
  const Tensor v = to_heads(v_->forward(x), heads_);
  const Features f = features(to_heads(q_->forward(x), heads_), to_heads(k_->forward(x), heads_), x, pass);
  redraw(pass);
  FeatureSums sums{f.q, f.k, v, f.gate};
  sums.causal = shape_.causal, sums.positive = shape_.positive, sums.eps = shape_.eps;
  sums.lanes = lanes_of(pass);
  sums.reuse = owned(state, kState) && (!shape_.positive || owned(state, kSum));
  sums.state = carried(state, kState);
  sums.sum = carried(state, kSum);
  const int64_t length = x.size(1);
  const Form form = choose_form(pass, length, state != nullptr, shape_.chunk);
  const FeatureRead read = read_features(sums, form == Form::step       ? 0
                                               : form == Form::parallel ? std::max<int64_t>(length, 1)
                                                                        : shape_.chunk);
  if (state) {
    state->tensors[kState] = read.state;
    if (shape_.positive) state->tensors[kSum] = read.sum;
  }
  return mask_invalid(out_->forward(from_heads(read.out)), pass);
}

std::string FeatureAttention::explain() const {
  const std::string size = text(shape_.columns, " features a head");
  if (!shape_.causal) return text("two products over all tokens, ", size, ", torch operators");
  const auto type = q_->weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::string why = why_not_fused_decay(shape_.columns, shape_.positive ? width_ : width_ + 1, type);
  return text("scan_decay in chunks of ", shape_.chunk, ", ", size,
              why.empty() ? ", fused" : ", torch operators, since " + why);
}

}  // namespace kinfolk
