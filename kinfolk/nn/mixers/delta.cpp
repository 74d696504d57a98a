#include "kinfolk/nn/mixers/delta.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_delta.h"

namespace kinfolk {

Tensor unit_rows(const Tensor& x) { return x * (x.square().sum(-1, true) + 1e-6).rsqrt(); }

Delta::Delta(const Options& options, const Context& context)
    : options_(options), heads_(head_count(options.heads, context)), width_(context.size.width / heads_) {
  const int64_t D = context.size.width;
  for (const char* name : {"q", "k", "v"}) streams_.emplace_back(*this, context, name, D, options.conv);
  beta_ = register_module("beta", std::make_shared<Linear>(context, D, heads_, false));
  norm_ = register_module("norm", std::make_shared<Norm>(context, "rms", width_, true, options.eps));
  out_ = register_module("out", std::make_shared<Linear>(context, D, D, false));
  if (options_.scale == 0) options_.scale = 1 / std::sqrt(static_cast<double>(width_));
}

Traits Delta::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State Delta::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kState] = at::zeros({batch, heads_, width_, width_}, state_options(like));
  for (const ConvStream& one : streams_) one.start(state, batch, like);
  return state;
}

double Delta::flops(int64_t length, int64_t) const {
  const double d = static_cast<double>(width_), H = static_cast<double>(heads_), tokens = static_cast<double>(length);
  double sum = beta_->flops(length) + out_->flops(length);
  for (const ConvStream& one : streams_) sum += one.flops(length);
  return sum + tokens * H * 6 * d * d;  // k S, k r^T, q S
}

Tensor Delta::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);                    // [B, L, D]
  Tensor beta = at::sigmoid(beta_->forward(x)).transpose(1, 2);  // [B, H, L]
  if (options_.negative) beta = beta * 2;
  const auto stream = [&](int i) { return to_heads(streams_[i].forward(x, pass, state), heads_); };  // [B, H, L, d]
  DeltaScan scan{unit_rows(stream(0)), unit_rows(stream(1)), stream(2), beta};
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
  return mask_invalid(out_->forward(from_heads(norm_->forward(done.out))), pass);
}

std::string Delta::explain() const {
  const std::string why =
      why_not_fused_delta(width_, width_, norm_->weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return text("short_conv and scan_delta in chunks of ", options_.chunk,
              why.empty() ? ", fused but where documents meet" : ", torch operators, since " + why,
              "; step by step with a state");
}

}  // namespace kinfolk
