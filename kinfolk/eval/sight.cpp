#include "kinfolk/eval/sight.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Tensor sight(Model& model, const Tensor& tokens, int64_t cells, const std::map<std::string, Tensor>& facts) {
  at::NoGradGuard no_grad;
  const int64_t length = tokens.size(0), vocabulary = model.size().vocabulary;
  if (cells < 1 || cells > length) fail("[sight.cells] expected 1 to ", length, "; found ", cells);
  const bool training = model.is_training();
  model.eval();
  const Tensor edges = at::linspace(0, static_cast<double>(length), cells + 1, at::kDouble).round().to(at::kLong);
  const auto* edge = edges.const_data_ptr<int64_t>();
  Tensor lanes = tokens.unsqueeze(0).repeat({cells + 1, 1});  // [cells + 1, L]
  for (int64_t j = 0; j < cells; ++j) {
    Tensor part = lanes.select(0, j).slice(0, edge[j], edge[j + 1]);
    part.copy_((part + 1 + vocabulary / 2).remainder(vocabulary));
  }
  Batch batch{lanes, {}};
  for (const auto& [name, fact] : facts) {
    auto sizes = fact.sizes().vec();
    sizes[0] = cells + 1;
    batch.facts[name] = fact.expand(sizes);
  }
  const Tensor p = model.score(batch).to(at::kDouble).softmax(-1);                          // [cells + 1, L, V]
  const Tensor change = (p.narrow(0, 0, cells) - p.narrow(0, cells, 1)).abs().sum(-1) / 2;  // [cells, L]
  Tensor out = at::zeros({cells, cells}, at::kDouble);
  for (int64_t i = 0; i < cells; ++i) out.select(0, i).copy_(change.slice(1, edge[i], edge[i + 1]).mean(1));
  model.train(training);
  return out;
}

Tensor sight_of(const Recipe& recipe, int64_t length, const std::map<std::string, Tensor>& facts) {
  Size size = load_size("tiny");
  size.depth = 1;
  if (const auto* layers = recipe.tree.find("layers")) {
    if (const auto* groups = layers->as<Value::Array>())
      size.depth = std::max<int64_t>(1, static_cast<int64_t>(groups->size()));
  }
  size.context = length;
  const auto model = Model::make(recipe, size, 1, at::TensorOptions().dtype(at::kDouble));
  const Tensor tokens = at::arange(length, at::kLong).mul(7).remainder(size.vocabulary);
  return sight(*model, tokens, length, facts).gt(1e-12);
}

}  // namespace kinfolk
