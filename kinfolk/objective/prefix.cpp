#include "kinfolk/objective/prefix.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/objective/causal.h"

namespace kinfolk {
namespace {

constexpr auto kPrefix = "prefix";

Tensor valid_tokens(const Batch& batch) {
  const int64_t length = batch.tokens.size(1);
  Tensor valid = batch.fact("valid");
  if (const Tensor lengths = batch.fact("lengths"); lengths.defined()) {
    const Tensor within = at::arange(length, batch.tokens.options()).unsqueeze(0) < lengths.unsqueeze(1);
    valid = valid.defined() ? valid & within : within;
  }
  return valid.defined() ? valid.sum(1) : at::full({batch.tokens.size(0)}, length, batch.tokens.options());
}

}  // namespace

Tensor Prefix::draw(const Tensor& valid_tokens, uint64_t seed) const {
  // A stream of its own: dropout draws from the same seed.
  auto generator = at::detail::createCPUGenerator(seed * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Tensor u = at::rand({valid_tokens.size(0), 2}, generator, options);
  const Tensor most = ((valid_tokens.to(at::kCPU) - 1).clamp_min(0) * options_.longest).floor();
  const Tensor length = (u.select(1, 0) * most).floor() + 1;  // from 1 to `most`
  const Tensor nothing = u.select(1, 1).lt(options_.none).logical_or(most.lt(1));
  return length.masked_fill(nothing, 0).to(valid_tokens.options());
}

Loss Prefix::loss(Model& model, Pass& pass) {
  if (model.traits().causal) {
    fail(
        "[objective] expected a pattern that reads the fact prefix, such as prefix(@prefix) | causal; found a causal "
        "member, for which the objective is causal");
  }
  const Tensor target = target_of(pass.batch);
  Batch batch = pass.batch;
  Tensor prefix = batch.fact(kPrefix);
  if (!prefix.defined()) {
    const Tensor tokens = valid_tokens(batch);
    prefix = model.is_training() ? draw(tokens, pass.seed) : at::zeros_like(tokens);
    batch.facts[kPrefix] = prefix;
  }
  Pass own{batch};
  own.state = pass.state, own.form = pass.form, own.seed = pass.seed, own.draws = pass.draws;
  own.losses = pass.losses, own.trace = pass.trace, own.updates = pass.updates;
  Loss loss = token_loss(model, own, options_.tile, [&](const Pass& ran) {
    return target.masked_fill(ran.position < prefix.unsqueeze(1) - 1, -100);
  });
  pass.position = own.position, pass.valid = own.valid, pass.document = own.document, pass.first = own.first;
  pass.draws = own.draws;
  return loss;
}

}  // namespace kinfolk
