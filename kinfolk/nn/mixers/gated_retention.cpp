#include "kinfolk/nn/mixers/gated_retention.h"

namespace kinfolk {

GatedRetention::GatedRetention(const Options& options, const Context& context)
    : DecayMixer({options.heads, 1, options.values, options.bias, options.swish, options.output_norm, true, 1e-5,
                  options.scale, options.chunk},
                 context),
      tau_(options.tau) {
  decay_ = register_module("decay", std::make_shared<Linear>(context, context.size.width, heads_));
  if (decay_->bias.is_meta()) return;
  const at::NoGradGuard guard;
  decay_->bias.copy_(retention_logits(heads_));
}

void GatedRetention::prepare(DecayScan& scan, const Tensor& x, Pass&) {
  scan.gate.key =
      at::log_sigmoid(decay_->forward(x).to(decay_->weight.scalar_type())).transpose(1, 2) / tau_;  // [B, H, L]
  scan.gate.log = true;
}

std::string GatedRetention::explain() const { return "one decay a token and head, " + DecayMixer::explain(); }

}  // namespace kinfolk
