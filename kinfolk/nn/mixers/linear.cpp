#include "kinfolk/nn/mixers/linear.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/feature.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_decay.h"

namespace kinfolk {

LinearAttention::LinearAttention(const Options& options, const Context& context)
    : options_(options), heads_(head_count(options.heads, context)), width_(context.size.width / heads_) {
  if (options.normalise && !feature_positive(options.feature)) {
    refuse("[", context.path, ".normalise] expected false with feature ", options.feature,
           ", whose weights may cancel to 0; found true");
  }
  const int64_t D = context.size.width;
  q_ = register_module("q", std::make_shared<Linear>(context, D, D, options.bias));
  k_ = register_module("k", std::make_shared<Linear>(context, D, D, options.bias));
  v_ = register_module("v", std::make_shared<Linear>(context, D, D, options.bias));
  if (options.output_norm != "none") {
    norm_ = register_module("norm", std::make_shared<Norm>(context, options.output_norm, width_));
  }
  out_ = register_module("out", std::make_shared<Linear>(context, D, D, options.bias));
  if (options_.scale == 0) options_.scale = 1 / std::sqrt(static_cast<double>(width_));
}

Traits LinearAttention::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State LinearAttention::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kState] = at::zeros({batch, heads_, width_, width_}, state_options(like));
  if (options_.normalise) state.tensors[kSum] = at::zeros({batch, heads_, width_}, state_options(like));
  return state;
}

double LinearAttention::flops(int64_t length, int64_t) const {
  const double d = static_cast<double>(width_), tokens = static_cast<double>(length);
  const double scan = 4 * d * d + (options_.normalise ? 2 * d : 0);  // k v^T and q S, and q z
  return q_->flops(length) + k_->flops(length) + v_->flops(length) + out_->flops(length) +
         tokens * static_cast<double>(heads_) * scan;
}

Tensor LinearAttention::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);  // [B, L, D]
  DecayScan scan{feature(options_.feature, to_heads(q_->forward(x), heads_)),
                 feature(options_.feature, to_heads(k_->forward(x), heads_)), to_heads(v_->forward(x), heads_)};
  scan.reuse = owned(state, kState) && (!options_.normalise || owned(state, kSum));
  scan.state = carried(state, kState);
  scan.sum = carried(state, kSum);
  scan.scale = options_.scale;
  scan.normalise = options_.normalise;
  scan.eps = options_.eps;
  scan.lanes = lanes_of(pass);
  const int64_t length = x.size(1);
  const Form form = choose_form(pass, length, state != nullptr, options_.chunk);
  const DecayScanned done =
      form == Form::step ? scan_decay_steps(scan)
                         : scan_decay(scan, form == Form::parallel ? std::max<int64_t>(length, 1) : options_.chunk);
  if (state) {
    state->tensors[kState] = done.state;
    if (options_.normalise) state->tensors[kSum] = done.sum;
  }
  const Tensor read = norm_ ? norm_->forward(done.out) : done.out;  // [B, H, L, d]
  return mask_invalid(out_->forward(from_heads(read)), pass);
}

std::string LinearAttention::explain() const {
  const std::string why =
      why_not_fused_decay(width_, width_, q_->weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return text("scan_decay without decay in chunks of ", options_.chunk,
              why.empty() ? ", fused but where documents meet" : ", torch operators, since " + why,
              "; step by step with a state");
}

}  // namespace kinfolk
