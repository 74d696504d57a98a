#include "kinfolk/nn/mixers/mamba.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/conv_stream.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/scan_selective.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {

Mamba::Mamba(const Options& options, const Context& context)
    : options_(options),
      channels_(options.expand > 0 ? options.expand * context.size.width : std::max<int64_t>(1, context.size.feed / 2)),
      rank_(options.rank > 0 ? options.rank : (context.size.width + 15) / 16) {
  const int64_t D = context.size.width, E = channels_, N = options.states;
  in_ = register_module("in", std::make_shared<Linear>(context, D, 2 * E, false));
  conv_ = register_parameter(
      "conv", draw_parameter(context, {E, options.conv}, 1 / std::sqrt(3 * static_cast<double>(options.conv))));
  conv_bias_ = register_parameter("conv_bias", fill_parameter(context, {E}, 0));
  select_ = register_module("select", std::make_shared<Linear>(context, E, rank_ + 2 * N, false));
  step_ = register_module("step", std::make_shared<Linear>(context, rank_, E, true, 1 / std::sqrt(3.0)));
  a_log_ = register_parameter("a_log", fill_parameter(context, {E, N}, 0));
  skip_ = register_parameter("skip", fill_parameter(context, {E}, 1));
  out_ = register_module("out", std::make_shared<Linear>(context, E, D, false));
  if (!a_log_.is_meta()) {
    const at::NoGradGuard guard;
    a_log_.copy_(at::arange(1, N + 1, a_log_.options()).log().expand({E, N}));
    step_->bias.copy_(step_sizes(context, E));
  }
}

Traits Mamba::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State Mamba::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kState] = at::zeros({batch, channels_, options_.states}, state_options(like));
  if (options_.conv > 1) state.tensors[kPast] = at::zeros({batch, channels_, options_.conv - 1}, state_options(like));
  return state;
}

double Mamba::flops(int64_t length, int64_t) const {
  const double each = static_cast<double>(channels_) * static_cast<double>(length);
  return in_->flops(length) + select_->flops(length) + step_->flops(length) + out_->flops(length) +
         each * (2 * static_cast<double>(options_.conv) + 6 * static_cast<double>(options_.states));
}

Tensor Mamba::forward(const Tensor& given, Pass& pass, State* state) {
  const Tensor both = in_->forward(mask_invalid(given, pass));  // [B, L, 2 E]
  const bool moves_on = owned(state, kPast);
  ShortConv stream{both.narrow(-1, 0, channels_), conv_, conv_bias_, carried(state, kPast), true, lanes_of(pass)};
  stream.reuse = moves_on;
  const ShortConved conv = short_conv(stream);
  const Tensor chosen = select_->forward(conv.out);  // [B, L, R + 2 N]
  const int64_t N = options_.states;
  SelectiveScan scan{conv.out, at::linear(chosen.narrow(-1, 0, rank_), step_->weight), -a_log_.exp(),
                     chosen.narrow(-1, rank_, N), chosen.narrow(-1, rank_ + N, N)};
  scan.skip = skip_;
  scan.z = both.narrow(-1, channels_, channels_);
  scan.bias = step_->bias;
  scan.reuse = owned(state, kState);
  scan.state = carried(state, kState);
  scan.zoh = options_.discretisation == "zoh";
  scan.lanes = lanes_of(pass);
  // One token is a short scan: the definition token by token runs only where it is asked for.
  const int64_t length = both.size(1);
  const SelectiveScanned done =
      pass.form == Form::step
          ? scan_selective_steps(scan)
          : scan_selective(scan, choose_form(pass, length, state != nullptr, options_.chunk) == Form::parallel
                                     ? std::max<int64_t>(length, 1)
                                     : options_.chunk);
  if (state) {
    state->tensors[kState] = done.state;
    if (options_.conv > 1) state->tensors[kPast] = conv.state;
  }
  return mask_invalid(out_->forward(done.out), pass);
}

std::string Mamba::explain() const {
  return text("short_conv and scan_selective over ", channels_, " channels of ", options_.states, " states",
              a_log_.scalar_type() == at::kDouble || !a_log_.is_cpu()
                  ? text(", torch operators in chunks of ", options_.chunk, ", since it is not float32 on a CPU")
                  : ", fused");
}

}  // namespace kinfolk
