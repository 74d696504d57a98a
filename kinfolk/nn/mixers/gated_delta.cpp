#include "kinfolk/nn/mixers/gated_delta.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/delta.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_delta.h"

namespace kinfolk {

GatedDelta::GatedDelta(const Options& options, const Context& context)
    : options_(options), heads_(head_count(options.heads, context)), width_(context.size.width / heads_) {
  const int64_t D = context.size.width;
  for (const char* name : {"q", "k", "v"}) streams_.emplace_back(*this, context, name, D, options.conv);
  beta_ = register_module("beta", std::make_shared<Linear>(context, D, heads_, false));
  decay_ = register_module("decay", std::make_shared<Linear>(context, D, heads_, false));
  swish_ = register_module("swish", std::make_shared<Linear>(context, D, D, false));
  norm_ = register_module("norm", std::make_shared<Norm>(context, "rms", width_, true, options.eps));
  out_ = register_module("out", std::make_shared<Linear>(context, D, D, false));
  rate_log_ = register_parameter("rate_log", log_rates(context, heads_));
  step_bias_ = register_parameter("step_bias", step_sizes(context, heads_));
  if (options_.scale == 0) options_.scale = 1 / std::sqrt(static_cast<double>(width_));
}

Traits GatedDelta::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State GatedDelta::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kState] = at::zeros({batch, heads_, width_, width_}, state_options(like));
  for (const ConvStream& one : streams_) one.start(state, batch, like);
  return state;
}

double GatedDelta::flops(int64_t length, int64_t) const {
  const double d = static_cast<double>(width_), H = static_cast<double>(heads_), tokens = static_cast<double>(length);
  double sum = beta_->flops(length) + decay_->flops(length) + swish_->flops(length) + out_->flops(length);
  for (const ConvStream& one : streams_) sum += one.flops(length);
  return sum + tokens * H * 6 * d * d;  // k S, k r^T, q S
}

Tensor GatedDelta::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);                    // [B, L, D]
  Tensor beta = at::sigmoid(beta_->forward(x)).transpose(1, 2);  // [B, H, L]
  if (options_.negative) beta = beta * 2;
  const auto stream = [&](int i) { return to_heads(streams_[i].forward(x, pass, state), heads_); };  // [B, H, L, d]
  DeltaScan scan{unit_rows(stream(0)), unit_rows(stream(1)), stream(2), beta};
  const Tensor wide = decay_->forward(x).to(rate_log_.scalar_type());
  scan.log_decay = -(rate_log_.exp() * at::softplus(wide + step_bias_)).transpose(1, 2);
  scan.reuse = owned(state, kState);
  scan.state = carried(state, kState);
  scan.scale = options_.scale;
  scan.lanes = lanes_of(pass);
  const int64_t length = x.size(1);
  const Form form = choose_form(pass, length, state != nullptr, options_.chunk);
  const Scanned done = form == Form::step
                           ? scan_delta_steps(scan)
                           : scan_delta(scan, form == Form::parallel ? std::max<int64_t>(length, 1) : options_.chunk);
  if (state) state->tensors[kState] = done.state;
  const Tensor read = from_heads(norm_->forward(done.out)) * at::silu(swish_->forward(x));
  return mask_invalid(out_->forward(read), pass);
}

std::string GatedDelta::explain() const {
  const std::string why =
      why_not_fused_delta(width_, width_, norm_->weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return text("short_conv and scan_delta with a decay in chunks of ", options_.chunk,
              why.empty() ? ", fused but where documents meet" : ", torch operators, since " + why,
              "; step by step with a state");
}

}  // namespace kinfolk
