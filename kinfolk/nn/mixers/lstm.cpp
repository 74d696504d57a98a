#include "kinfolk/nn/mixers/lstm.h"

#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/lstm_loop.h"

namespace kinfolk {

Lstm::Lstm(const Options& options, const Context& context)
    : hidden_(options.hidden == 0 ? context.size.width : options.hidden) {
  const int64_t D = context.size.width, N = hidden_;
  const double deviation = 1 / std::sqrt(3.0 * static_cast<double>(N));
  weight_ih = register_parameter("weight_ih", draw_parameter(context, {4 * N, D}, deviation));
  weight_hh = register_parameter("weight_hh", draw_parameter(context, {4 * N, N}, deviation));
  bias_ih = register_parameter("bias_ih", fill_parameter(context, {4 * N}, 0));
  bias_hh = register_parameter("bias_hh", fill_parameter(context, {4 * N}, 0));
  if (!bias_ih.is_meta()) {
    at::NoGradGuard guard;
    bias_ih.narrow(0, N, N).fill_(1);
  }
  if (N != D) out_ = register_module("out", std::make_shared<Linear>(context, N, D, false));
}

Traits Lstm::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State Lstm::start(int64_t batch, at::TensorOptions like) const {
  State state;
  for (const char* name : {kHidden, kCell}) state.tensors[name] = at::zeros({batch, hidden_}, state_options(like));
  return state;
}

double Lstm::flops(int64_t length, int64_t) const {
  const double products = static_cast<double>(weight_ih.numel() + weight_hh.numel());
  return 2 * static_cast<double>(length) * products + (out_ ? out_->flops(length) : 0);
}

Tensor Lstm::forward(const Tensor& x, Pass& pass, State* state) {
  const LstmLooped done = lstm_loop(
      {x, weight_ih, weight_hh, bias_ih, bias_hh, carried(state, kHidden), carried(state, kCell), lanes_of(pass)});
  if (state) {
    state->tensors[kHidden] = done.hidden;
    state->tensors[kCell] = done.cell;
  }
  return out_ ? out_->forward(done.out) : done.out;  // [B, L, D]; rows of invalid tokens are 0
}

std::string Lstm::explain() const {
  return "lstm_loop: oneDNN over whole float32 sequences, token by token where there are gaps, documents or few tokens";
}

}  // namespace kinfolk
