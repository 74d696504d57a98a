#include "kinfolk/eval/layer_cost.h"

#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/eval/bench_run.h"

namespace kinfolk {

LayerCost::LayerCost(const Recipe& recipe, const Size& size) {
  model_ = Model::make(recipe, size, 1);
  for (const auto& part : model_->modules(false))
    if (!mixer_) mixer_ = std::dynamic_pointer_cast<Branch>(part);
  for (const auto& [name, weight] : trainable(*mixer_)) weights_.push_back(weight);
}

void LayerCost::run(const Tensor& x, const Tensor& by) {
  const Batch batch{at::zeros({1, x.size(1)}, at::kLong), {}};
  std::map<std::string, Tensor> losses;
  Pass pass{.batch = batch};
  pass.position = at::arange(x.size(1), at::kLong).unsqueeze(0);
  pass.seed = 1, pass.losses = &losses, pass.updates = &updates_;
  const Tensor in = x.detach().set_requires_grad(true);
  {
    std::vector<Tensor> out{mixer_->forward(in, pass, nullptr)}, gradients{by}, leaves = weights_;
    leaves.push_back(in);
    for (const auto& [name, weight] : model_->loss_weights())
      if (const auto loss = losses.find(name); loss != losses.end() && loss->second.requires_grad()) {
        out.push_back(loss->second), gradients.push_back(at::full_like(loss->second, weight));
      }
    torch::autograd::grad(out, leaves, gradients, false, false, true);
  }
  for (const auto& update : updates_) update();
  updates_.clear();
}

std::vector<CostPoint> measure_layers(std::vector<LayerCost>& layers, int64_t length, int64_t width, const Turns& turns,
                                      const std::function<void(size_t layer)>& note) {
  const auto random = at::detail::createCPUGenerator(1);
  const Tensor x = at::randn({1, length, width}, random), by = at::randn({1, length, width}, random);
  std::vector<std::function<void()>> runs;
  for (size_t i = 0; i < layers.size(); ++i) {
    runs.push_back([&, i] {
      if (note) note(i);
      layers[i].run(x, by);
    });
  }
  const Interleaved timed = interleave(runs, turns);
  std::vector<CostPoint> out;
  BenchRun memory({});
  for (size_t i = 0; i < layers.size(); ++i) {
    out.push_back({length, timed.time(i), static_cast<double>(memory.peak(runs[i])), timed.rounds()});
  }
  return out;
}

}  // namespace kinfolk
