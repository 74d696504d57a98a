#include "kinfolk/objective/masked.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/objective/causal.h"

namespace kinfolk {

Masked::Masked(const Options& options) : options_(options) {
  if (options.random + options.same > 1) {
    refuse("[objective.random] expected random + same of at most 1; found ", options.random + options.same);
  }
}

Masked::Hidden Masked::hide(const Tensor& tokens, const Tensor& valid, int64_t vocabulary, uint64_t seed) const {
  const int64_t mask = options_.mask < 0 ? vocabulary - 1 : options_.mask;
  if (mask >= vocabulary) fail("[objective.mask] expected an id below ", vocabulary, "; found ", mask);
  // A stream of its own: dropout draws from the same seed.
  auto generator = at::detail::createCPUGenerator(seed * 0x9E3779B97F4A7C15ull + 0xA0761D6478BD642Full);
  const auto real = at::TensorOptions().dtype(at::kDouble);
  const auto uniform = [&] { return at::rand(tokens.sizes(), generator, real).to(tokens.device()); };
  Tensor asked = uniform().lt(options_.share);
  if (valid.defined()) asked = asked.logical_and(valid);
  const Tensor fate = uniform();
  const Tensor other =
      at::randint(vocabulary, tokens.sizes(), generator, at::TensorOptions().dtype(at::kLong)).to(tokens.device());
  const Tensor stays = asked.logical_not().logical_or(fate.lt(options_.same));
  const Tensor replaced = other.masked_fill(fate.ge(options_.same + options_.random), mask);
  return {at::where(stays, tokens, replaced), asked};
}

Loss Masked::loss(Model& model, Pass& pass) {
  if (model.traits().causal) {
    fail(
        "[objective] expected a member that sees what comes after a token; found a causal one, for which the objective "
        "is causal");
  }
  const Tensor tokens = pass.batch.tokens;
  Tensor valid = pass.batch.fact("valid");
  if (const Tensor lengths = pass.batch.fact("lengths"); lengths.defined()) {
    const Tensor within = at::arange(tokens.size(1), tokens.options()).unsqueeze(0) < lengths.unsqueeze(1);
    valid = valid.defined() ? valid & within : within;
  }
  const Hidden hidden = hide(tokens, valid, model.size().vocabulary, pass.seed);
  Batch batch = pass.batch;
  batch.tokens = hidden.tokens;
  Pass own{batch};
  own.state = pass.state, own.form = pass.form, own.seed = pass.seed, own.draws = pass.draws;
  own.losses = pass.losses, own.trace = pass.trace, own.updates = pass.updates;
  Loss loss = token_loss(model, own, options_.tile,
                         [&](const Pass&) { return tokens.masked_fill(hidden.asked.logical_not(), -100); });
  pass.position = own.position, pass.valid = own.valid, pass.document = own.document, pass.first = own.first;
  pass.draws = own.draws;
  return loss;
}

}  // namespace kinfolk
