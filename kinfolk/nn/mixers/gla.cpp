#include "kinfolk/nn/mixers/gla.h"

#include "kinfolk/nn/mixers/heads.h"

namespace kinfolk {

Gla::Gla(const Options& options, const Context& context)
    : DecayMixer({options.heads, options.keys, options.values, false, options.swish, options.output_norm, true, 1e-5,
                  options.scale, options.chunk},
                 context),
      tau_(options.tau) {
  low_ = register_module("decay_low", std::make_shared<Linear>(context, context.size.width, options.rank, false));
  decay_ = register_module("decay", std::make_shared<Linear>(context, options.rank, heads_ * keys_));
}

void Gla::prepare(DecayScan& scan, const Tensor& x, Pass&) {
  scan.gate.key = to_heads(at::log_sigmoid(decay_->forward(low_->forward(x))), heads_) / tau_;  // [B, H, L, K]
  scan.gate.log = true;
}

std::string Gla::explain() const { return "one decay a token and key channel, " + DecayMixer::explain(); }

}  // namespace kinfolk
