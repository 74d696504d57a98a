#include "kinfolk/nn/depth/once.h"

#include "kinfolk/nn/layer.h"

namespace kinfolk {
namespace {

std::string part(size_t layer) { return "layer." + std::to_string(layer); }

}  // namespace

Traits Once::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.relative = true;
  return traits;
}

State Once::start(const Layers& layers, int64_t batch, at::TensorOptions like) const {
  State state;
  for (size_t i = 0; i < layers.size(); ++i) {
    State own = layers[i]->start(batch, like);
    if (!own.empty()) state.parts[part(i)] = std::move(own);
  }
  return state;
}

double Once::flops(const Layers& layers, int64_t length, int64_t from) const {
  double sum = 0;
  for (const auto& layer : layers) sum += layer->flops(length, from);
  return sum;
}

Tensor Once::run(Tensor x, const Layers& layers, const ReadOut&, Pass& pass, State* state) {
  for (size_t i = 0; i < layers.size(); ++i) {
    State* own = nullptr;
    if (state) {
      const auto found = state->parts.find(part(i));
      if (found != state->parts.end()) own = &found->second;
    }
    x = layers[i]->forward(x, pass, own);
  }
  return x;
}

}  // namespace kinfolk
