#include "kinfolk/nn/depth/universal.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/tables.h"

namespace kinfolk {
namespace {

std::string part(const char* kind, int64_t number) { return std::string(kind) + "." + std::to_string(number); }

/// A part of a state; null when there is none: layers without a state leave no part.
State* inside(State* state, const std::string& name) {
  if (!state) return nullptr;
  const auto found = state->parts.find(name);
  return found == state->parts.end() ? nullptr : &found->second;
}

}  // namespace

Universal::Universal(const Options& options, const Context& context)
    : options_(options), steps_(options.steps > 0 ? options.steps : context.size.depth) {
  if (options.halting == "act") {
    halt_ = register_module("halt", std::make_shared<Linear>(context, context.size.width, 1));
    at::NoGradGuard guard;
    halt_->bias.fill_(options.bias);
  }
}

Traits Universal::traits() const {
  Traits t;
  t.bounded = true;
  t.relative = options_.signal == "none";
  if (!t.relative) t.why_not = "the time-and-position signal of the universal depth is absolute";
  return t;
}

State Universal::start(const std::vector<std::shared_ptr<Layer>>& layers, int64_t batch, at::TensorOptions like) const {
  State state;
  for (int64_t t = 1; t <= steps_; ++t) {
    State step;
    for (size_t i = 0; i < layers.size(); ++i) {
      State own = layers[i]->start(batch, like);
      if (!own.empty()) step.parts[part("layer", static_cast<int64_t>(i))] = std::move(own);
    }
    if (!step.empty()) state.parts[part("step", t)] = std::move(step);
  }
  return state;
}

double Universal::flops(const std::vector<std::shared_ptr<Layer>>& layers, int64_t length, int64_t from) const {
  double sum = halt_ ? halt_->flops(length) : 0;
  for (const auto& layer : layers) sum += layer->flops(length, from);
  return sum * static_cast<double>(steps_);
}

Tensor Universal::signal(const Tensor& position, int64_t step, int64_t width, at::TensorOptions like) const {
  const Tensor time = at::full({}, step, position.options());
  return sinusoid(position, width, options_.base, options_.layout, like) +
         sinusoid(time, width, options_.base, options_.layout, like);
}

Tensor Universal::run(Tensor x, const std::vector<std::shared_ptr<Layer>>& layers, const ReadOut&, Pass& pass,
                      State* state) {
  if (layers.empty()) fail("[depth.universal] expected at least one layer; found none");
  const int64_t width = x.size(-1);
  std::optional<Act> act;
  if (halt_) act.emplace(ActOptions{options_.eps, options_.form, options_.strict}, x);
  Tensor h = x;  // [B, L, D]
  for (int64_t t = 1; t <= steps_; ++t) {
    const bool signals = options_.signal != "none";
    const Tensor signal_t = signals ? signal(pass.position, t, width, x.options()) : Tensor();
    const Tensor u = signals ? mask_invalid(h + signal_t, pass) : h;
    State* step = inside(state, part("step", t));
    Tensor next = options_.signal == "stream" ? u : h;
    for (size_t i = 0; i < layers.size(); ++i) {
      State* own = inside(step, part("layer", static_cast<int64_t>(i)));
      next = layers[i]->forward(next, pass, own, i == 0 && options_.signal == "branch" ? signal_t : Tensor());
    }
    if (!act) {
      h = next;
      continue;
    }
    const Tensor p = halt_->forward(u).squeeze(-1).sigmoid();  // [B, L]
    h = at::where(act->running().unsqueeze(-1), next, h);
    act->add(h, p, t == steps_);
    Tensor awake = act->running();
    if (pass.valid.defined()) awake = awake.logical_and(pass.valid);
    // A state wants the keys of every step; without one, a token that has halted changes nothing any more.
    if (!state && t < steps_ && !awake.any().item<bool>()) break;
  }
  if (!act) {
    if (pass.trace) (*pass.trace)["updates"] = at::full({x.size(0), x.size(1)}, steps_, x.options().dtype(at::kLong));
    return h;
  }
  const Tensor ponder = act->ponder();  // [B, L]
  if (pass.trace) {
    (*pass.trace)["updates"] = act->updates();
    (*pass.trace)["ponder"] = ponder;
  }
  if (pass.valid.defined()) {
    const Tensor count = pass.valid.sum().clamp_min(1).to(ponder.scalar_type());
    add_loss(pass, "ponder", ponder.masked_fill(pass.valid.logical_not(), 0).sum() / count);
  } else if (ponder.numel() > 0) {
    add_loss(pass, "ponder", ponder.mean());
  }
  return act->mean();
}

}  // namespace kinfolk
