#include "kinfolk/objective/causal.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/reads_past.h"
#include "kinfolk/nn/recompute.h"
#include "kinfolk/nn/retrieve/retriever.h"

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The sum of -log softmax(scores)[target] over the rows of scores [n, V] float32. Holds one more tensor of that size;
/// with `once` (backward runs one time at most) the gradient takes its place.
struct NegativeLogLikelihood : torch::autograd::Function<NegativeLogLikelihood> {
  static Tensor forward(AutogradContext* context, const Tensor& scores, const Tensor& target, bool once) {
    const Tensor largest = scores.amax(1, true);                  // [n, 1]
    const Tensor wanted = scores.gather(1, target.unsqueeze(1));  // [n, 1]
    const Tensor weights = scores.requires_grad() ? scores.sub(largest).exp_() : scores.sub_(largest).exp_();
    const Tensor total = weights.sum(1, true);
    if (scores.requires_grad()) context->save_for_backward({weights, total, target});
    context->saved_data["once"] = once;
    return (largest + total.log() - wanted).sum();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &weights = saved[0], factor = gradients[0] / saved[1], target = saved[2].unsqueeze(1);
    Tensor out = context->saved_data["once"].toBool() ? weights.mul_(factor) : weights * factor;  // softmax
    out.scatter_add_(1, target, -gradients[0].expand_as(target));
    return {out, Tensor(), Tensor()};
  }
};

Tensor tile_loss(Head& head, const Tensor& x, const Tensor& target, Pass& pass, bool once) {
  const Tensor scores = head.read(x.unsqueeze(0), pass).squeeze(0).to(at::kFloat);  // [n, V]
  return NegativeLogLikelihood::apply(scores, target, once);
}

}  // namespace

Tensor cross_entropy(Head& head, const std::vector<Tensor>& parameters, const Tensor& x, const Tensor& target,
                     int64_t tile, int64_t vocabulary, const Pass& pass) {
  const int64_t rows = x.size(0), step = std::max<int64_t>(1, tile / vocabulary);
  const uint64_t seed = pass.seed, draws = pass.draws;
  const Tensor place = places_of(pass, rows);
  const auto batch_of = [&](int64_t from, int64_t count) {  // what a head may ask of these rows
    Batch out = pass.batch;
    out.facts.erase(kPlace);
    if (place.defined()) out.facts[kPlace] = place.narrow(0, from, count).unsqueeze(0);
    return out;
  };
  if (rows <= step) {
    const Batch all = batch_of(0, rows);
    Pass own{all};
    own.seed = seed, own.draws = draws;
    return tile_loss(head, x, target, own, false);
  }
  Tensor sum = at::zeros({}, x.options().dtype(at::kFloat));
  int64_t from = 0;
  for (const Tensor& part : x.split(step)) {  // one gradient for all of x, where narrow would make one each
    const int64_t count = part.size(0);
    const Tensor wanted = target.narrow(0, from, count);
    const Rerun f = [&head, wanted, seed, draws, from, batch = batch_of(from, count)](const std::vector<Tensor>& in,
                                                                                      bool) {
      Pass own{batch};
      own.seed = seed, own.draws = draws + static_cast<uint64_t>(from);
      return std::vector<Tensor>{tile_loss(head, in[0], wanted, own, true)};
    };
    sum = sum + (at::GradMode::is_enabled() ? recompute(f, {part}, parameters) : f({part}, false))[0];
    from += count;
  }
  return sum;
}

Tensor weigh_losses(const std::map<std::string, Tensor>& losses, const std::map<std::string, double>& weights) {
  std::vector<std::string> known;
  for (const auto& [name, value] : losses) known.push_back(name);
  for (const auto& [name, weight] : weights)
    if (!losses.count(name)) {
      fail("[losses.", name, "] expected a loss that a component of the recipe reports; found none of that name",
           known.empty() ? "; the recipe's components report none" : suggest(name, known));
    }
  Tensor sum;
  for (const auto& [name, value] : losses) {
    const auto weight = weights.find(name);
    if (weight == weights.end()) {
      fail("[losses.", name,
           "] expected a weight, since a component reports this loss (0 switches it off); found none");
    }
    if (weight->second == 0) continue;
    const Tensor part = value * weight->second;
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

Tensor target_of(const Batch& batch) {
  const Tensor target = batch.fact("target");
  if (!target.defined() || target.sizes() != batch.tokens.sizes() || target.scalar_type() != at::kLong) {
    fail("[objective] expected the fact target, int64 ", batch.tokens.sizes(), "; found ",
         target.defined() ? text(target.scalar_type(), " ", target.sizes()) : "none");
  }
  return target;
}

Loss token_loss(Model& model, Pass& pass, int64_t tile, const std::function<Tensor(const Pass& pass)>& wanted) {
  std::map<std::string, Tensor> own;
  auto* outer = pass.losses;
  if (!outer) pass.losses = &own;
  const Tensor x = model.hidden(pass);  // [B, L, D]
  Loss loss;
  loss.auxiliary = weigh_losses(*pass.losses, model.loss_weights());
  pass.losses = outer;

  const Tensor target = wanted(pass);
  Tensor counts = target != -100;
  if (pass.valid.defined()) counts = counts & pass.valid;
  const Tensor rows = counts.flatten().nonzero().squeeze(1);  // [N]
  loss.count = rows.size(0);
  const bool all = loss.count == target.numel();  // no copy of x then
  const Tensor picked = all ? x.flatten(0, 1) : x.flatten(0, 1).index_select(0, rows);
  const Tensor tokens = all ? target.flatten() : target.flatten().index_select(0, rows);
  if (loss.count == 0) {
    loss.sum = picked.sum().to(at::kFloat);  // of nothing: 0, with a graph
    return loss;
  }
  const int64_t vocabulary = model.size().vocabulary;
  const int64_t lowest = tokens.min().item<int64_t>(), highest = tokens.max().item<int64_t>();
  if (lowest < 0 || highest >= vocabulary) {
    fail("[objective] expected targets from 0 to ", vocabulary - 1, ", or -100 for none; found ",
         lowest < 0 ? lowest : highest);
  }
  std::vector<Tensor> parameters;
  for (const auto& [name, parameter] : model.weights()) parameters.push_back(parameter);
  Batch facts = pass.batch;  // places follow the rows that count
  if (const Tensor place = places_of(pass, target.numel()); place.defined() && !all) {
    facts.facts[kPlace] = place.index_select(0, rows);
  }
  Pass read{facts};
  read.seed = pass.seed, read.draws = pass.draws;
  loss.sum = cross_entropy(model.head(), parameters, picked, tokens, tile, vocabulary, read);
  return loss;
}

Loss Causal::loss(Model& model, Pass& pass) {
  if (const Traits traits = model.traits(); !traits.causal && !reads_past_alone(model)) {
    fail(
        "[objective] expected prefix or masked for a member that sees the tokens it is asked for; found causal, and "
        "one that sees them: ",
        traits.why_not);
  }
  const Tensor target = target_of(pass.batch);
  return token_loss(model, pass, options_.tile, [&](const Pass&) { return target; });
}

}  // namespace kinfolk
