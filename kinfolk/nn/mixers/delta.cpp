#include "kinfolk/nn/mixers/delta.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_delta.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {
namespace {

/// x / sqrt(sum x^2 + eps): a zero row stays zero, with a finite gradient.
Tensor unit_rows(const Tensor& x) { return x * (x.square().sum(-1, true) + 1e-6).rsqrt(); }

}  // namespace

Delta::Delta(const Options& options, const Context& context)
    : options_(options), heads_(head_count(options.heads, context)), width_(context.size.width / heads_) {
  const int64_t D = context.size.width;
  for (const char* name : {"q", "k", "v"}) {
    Stream one{name, register_module(name, std::make_shared<Linear>(context, D, D, false)), {}};
    if (options.conv > 0) {
      one.conv = register_parameter(
          one.name + "_conv",
          draw_parameter(context, {D, options.conv}, 1 / std::sqrt(static_cast<double>(options.conv))));
    }
    streams_.push_back(one);
  }
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
  if (options_.conv > 1) {
    for (const Stream& one : streams_) {
      state.tensors[one.name + kPast] = at::zeros({batch, heads_ * width_, options_.conv - 1}, state_options(like));
    }
  }
  return state;
}

double Delta::flops(int64_t length, int64_t) const {
  const double d = static_cast<double>(width_), H = static_cast<double>(heads_), tokens = static_cast<double>(length);
  double sum = beta_->flops(length) + out_->flops(length);
  for (const Stream& one : streams_) {
    sum += one.project->flops(length) + 2 * tokens * H * d * static_cast<double>(options_.conv);
  }
  return sum + tokens * H * 6 * d * d;  // k S, k r^T, q S
}

Tensor Delta::stream(const Stream& one, const Tensor& x, const Pass& pass, State* state) const {
  const Tensor in = one.project->forward(x);  // [B, L, D]
  if (!one.conv.defined()) return to_heads(at::silu(in), heads_);
  const std::string past = one.name + kPast;
  const ShortConved done = short_conv({in, one.conv, {}, carried(state, past), true, lanes_of(pass)});
  if (state && options_.conv > 1) state->tensors[past] = done.state;
  return to_heads(done.out, heads_);  // [B, H, L, d]
}

Tensor Delta::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor x = mask_invalid(given, pass);                    // [B, L, D]
  Tensor beta = at::sigmoid(beta_->forward(x)).transpose(1, 2);  // [B, H, L]
  if (options_.negative) beta = beta * 2;
  DeltaScan scan{unit_rows(stream(streams_[0], x, pass, state)), unit_rows(stream(streams_[1], x, pass, state)),
                 stream(streams_[2], x, pass, state), beta};
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
