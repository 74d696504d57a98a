// What one layer's mixer costs at a length, forward and backward.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "kinfolk/eval/interleave.h"
#include "kinfolk/eval/scaling.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {

/// The first branch of the first layer of a recipe, with its projections and without norm, feed-forward, embedding and
/// head, as training calls it: in training mode, without a carried state, auxiliary losses by the recipe's weights,
/// and the updates of its statistics afterwards. The size's context is the length.
class LayerCost {
 public:
  /// Throws UsageError for a recipe that cannot be built at this size.
  LayerCost(const Recipe& recipe, const Size& size);
  /// Forward and backward of x [1, L, D], and of `by` [1, L, D], the gradient of the output.
  void run(const Tensor& x, const Tensor& by);

 private:
  std::shared_ptr<Model> model_;
  std::shared_ptr<Branch> mixer_;
  std::vector<Tensor> weights_;
  std::vector<std::function<void()>> updates_;
};

/// Seconds of each in turns, then the bytes of each, by itself; a first, unmeasured run of all comes before. All on the
/// same random input of one lane. `note` is called before each run, with the index of the layer.
std::vector<CostPoint> measure_layers(std::vector<LayerCost>& layers, int64_t length, int64_t width, const Turns& turns,
                                      const std::function<void(size_t layer)>& note);

}  // namespace kinfolk
