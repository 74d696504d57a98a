#include "kinfolk/train/gradient.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/train/autocast.h"

namespace kinfolk {

Batch lanes_of(const Batch& batch, int64_t from, int64_t to) {
  Batch out{batch.tokens.slice(0, from, to), {}};
  for (const auto& [name, tensor] : batch.facts) out.facts[name] = tensor.slice(0, from, to);
  return out;
}

StepLoss accumulate_gradient(Model& model, Objective& objective, const Batch& batch, int64_t parts,
                             std::vector<State>& states, bool bf16, const std::function<uint64_t(int64_t)>& seed) {
  const int64_t lanes = batch.tokens.size(0);
  if (parts < 1 || lanes % parts != 0) {
    refuse("[train.accumulate] expected a divisor of the ", lanes, " lanes; found ", parts);
  }
  StepLoss out;
  for (int64_t part = 0; part < parts; ++part) {
    const Batch mine = parts == 1 ? batch : lanes_of(batch, part * lanes / parts, (part + 1) * lanes / parts);
    Pass pass{mine};
    pass.state = states.empty() ? nullptr : &states[static_cast<size_t>(part)];
    pass.seed = seed(part);
    std::map<std::string, Tensor> losses;
    pass.losses = &losses;
    pass.updates = &out.updates;
    Loss loss;
    {
      const Autocast autocast(bf16);
      loss = objective.loss(model, pass);
    }
    if (pass.state) pass.state->detach();
    if (loss.count == 0) continue;
    const auto weight = static_cast<double>(loss.count);
    Tensor total = loss.sum.to(at::kFloat);
    if (loss.auxiliary.defined()) total = total + loss.auxiliary.to(at::kFloat) * weight;
    if (total.requires_grad()) total.backward();
    out.sum += loss.sum.item<double>();
    out.count += loss.count;
    for (const auto& [name, tensor] : losses) out.losses[name] += tensor.item<double>() * weight;
  }
  return out;
}

}  // namespace kinfolk
