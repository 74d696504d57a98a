#include "kinfolk/nn/mixers/retention.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Retention::Retention(const Options& options, const Context& context)
    : DecayMixer({options.heads, 1, options.values, options.bias, true, options.output_norm, false, options.eps, 1,
                  options.chunk},
                 context) {
  gamma = retention_logits(heads_).sigmoid().to(context.like.device());
  if (!options.rotary) return;
  if (keys_ % 2 != 0) {
    fail("[", context.path, ".rotary] expected an even head width; found ", keys_);
  }
  const int64_t pairs = keys_ / 2;
  rotation_.interleaved = true;
  for (int64_t j = 0; j < pairs; j++) {  // both ends are reached, unlike RoPE's
    rotation_.frequency.push_back(
        std::pow(10000.0, pairs > 1 ? -static_cast<double>(j) / static_cast<double>(pairs - 1) : 0.0));
  }
}

void Retention::prepare(DecayScan& scan, const Tensor&, Pass& pass) {
  scan.gate.key = gamma;
  scan.k = scan.k * (1 / std::sqrt(static_cast<double>(keys_)));
  if (rotation_.frequency.empty()) return;
  const Tensor at = turning_positions(pass.position);
  scan.q = rotation_.turn(scan.q, at), scan.k = rotation_.turn(scan.k, at);
}

std::string Retention::explain() const { return "one decay a head, " + DecayMixer::explain(); }

}  // namespace kinfolk
