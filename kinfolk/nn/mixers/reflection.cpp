#include "kinfolk/nn/mixers/reflection.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"

namespace kinfolk {

Reflection::Reflection(const Options& options, const Context& context)
    : DecayMixer({options.heads, 1, options.values, false, options.swish, options.output_norm, true, 1e-5,
                  options.scale, options.chunk},
                 context) {
  const int64_t D = context.size.width;
  decay_ = register_module("decay", std::make_shared<Linear>(context, D, heads_ * keys_));
  value_decay_ = register_module("value_decay", std::make_shared<Linear>(context, D, heads_ * values_));
  if (decay_->bias.is_meta()) return;
  const at::NoGradGuard guard;
  decay_->bias.copy_(retention_logits(heads_).repeat_interleave(keys_));
  value_decay_->bias.copy_(retention_logits(heads_).repeat_interleave(values_));
}

void Reflection::prepare(DecayScan& scan, const Tensor& x, Pass&) {
  scan.gate.key = to_heads(at::log_sigmoid(decay_->forward(x)), heads_);          // [B, H, L, K]
  scan.gate.value = to_heads(at::log_sigmoid(value_decay_->forward(x)), heads_);  // [B, H, L, V]
  scan.gate.log = true;
}

std::string Reflection::explain() const {
  const at::ScalarType type = q_->weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::string why = why_not_fused_decay(keys_, values_, type);
  return text("a gate of rank one, scan_decay ",
              why.empty() ? "token by token, fused" : "in chunks of at most 16, torch operators, since " + why);
}

}  // namespace kinfolk
