#include "kinfolk/nn/mixers/decay_mixer.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"

namespace kinfolk {
namespace {

int64_t head_width(const Context& context, int64_t heads, double factor, const char* key) {
  const double width = factor * static_cast<double>(context.size.width) / static_cast<double>(heads);
  if (width < 1 || width != std::floor(width)) {
    fail("[", context.path, ".", key, "] expected a multiple of the width ", context.size.width, " that ", heads,
         " heads divide; found ", factor);
  }
  return static_cast<int64_t>(width);
}

}  // namespace

DecayMixer::DecayMixer(const Shape& shape, const Context& context)
    : shape_(shape),
      heads_(head_count(shape.heads, context)),
      keys_(head_width(context, heads_, shape.keys, "keys")),
      values_(head_width(context, heads_, shape.values, "values")) {
  const int64_t D = context.size.width, K = heads_ * keys_, V = heads_ * values_;
  q_ = register_module("q", std::make_shared<Linear>(context, D, K, shape.bias));
  k_ = register_module("k", std::make_shared<Linear>(context, D, K, shape.bias));
  v_ = register_module("v", std::make_shared<Linear>(context, D, V, shape.bias));
  if (shape.swish) swish_ = register_module("swish", std::make_shared<Linear>(context, D, V, shape.bias));
  if (shape.norm != "none") {
    norm_ = register_module("norm", std::make_shared<Norm>(context, shape.norm == "group" ? "layer" : shape.norm,
                                                           values_, shape.affine, shape.eps));
  }
  out_ = register_module("out", std::make_shared<Linear>(context, V, D, shape.bias));
  if (shape_.scale == 0) shape_.scale = 1 / std::sqrt(static_cast<double>(keys_));
}

Traits DecayMixer::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State DecayMixer::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kState] = at::zeros({batch, heads_, keys_, values_}, state_options(like));
  return state;
}

double DecayMixer::flops(int64_t length, int64_t) const {
  const double scan = 5 * static_cast<double>(keys_ * values_);  // the decay, k v^T and q S
  return q_->flops(length) + k_->flops(length) + v_->flops(length) + out_->flops(length) +
         (swish_ ? swish_->flops(length) : 0) + gate_flops(length) + static_cast<double>(length * heads_) * scan;
}

DecayMixer::Streams DecayMixer::streams(const Tensor& x, Pass&, State*) { return {x, x, x, x, x}; }

Tensor DecayMixer::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);  // [B, L, D]
  const Streams in = streams(x, pass, state);
  DecayScan scan{to_heads(q_->forward(in.q), heads_), to_heads(k_->forward(in.k), heads_),
                 to_heads(v_->forward(in.v), heads_)};
  scan.reuse = owned(state, kState);
  scan.state = carried(state, kState);
  scan.scale = shape_.scale;
  scan.lanes = lanes_of(pass);
  prepare(scan, in.decay, pass);
  const int64_t length = x.size(1);
  const Form form = choose_form(pass, length, state != nullptr, shape_.chunk);
  const DecayScanned done =
      form == Form::step ? scan_decay_steps(scan)
                         : scan_decay(scan, form == Form::parallel ? std::max<int64_t>(length, 1) : shape_.chunk);
  if (state) state->tensors[kState] = done.state;
  const Tensor read = from_heads(norm_ ? norm_->forward(done.out) : done.out);  // [B, L, H V]
  return mask_invalid(out_->forward(swish_ ? read * at::silu(swish_->forward(in.swish)) : read), pass);
}

std::string DecayMixer::explain() const {
  const at::ScalarType type = q_->weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::string why = why_not_fused_decay(keys_, values_, type);
  return text("scan_decay in chunks of ", shape_.chunk, why.empty() ? ", fused" : ", torch operators, since " + why,
              "; step by step with a state");
}

Tensor retention_logits(int64_t heads) {
  const Tensor rare = at::pow(2.0, -5 - at::arange(heads, at::kDouble));  // 1 - gamma
  return at::log1p(-rare) - at::log(rare);
}

}  // namespace kinfolk
