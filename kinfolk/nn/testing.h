// What tests of models share.
#pragma once
#include "kinfolk/nn/model.h"

namespace kinfolk {

/// A small model of a recipe: 2 layers of width 32 (4 heads of 8), windows and segments shorter than its 96 tokens.
inline Size tiny_size() {
  Size size;
  size.depth = 2, size.width = 32, size.heads = 4, size.feed = 48, size.vocabulary = 29, size.context = 96;
  return size;
}

inline std::shared_ptr<Model> tiny(const std::string& name, double dropout = 0, at::ScalarType type = at::kFloat) {
  Recipe recipe = load_recipe(name);
  if (Value* let = recipe.tree.find("let"))
    for (auto& [key, value] : *let->as<Value::Table>())
      if (value.as<int64_t>()) value = Value(int64_t{16});
  Size size = tiny_size();
  size.dropout = dropout;
  return Model::make(recipe, size, 1, at::TensorOptions().dtype(type));
}

/// Random tokens, each with the next as its target.
inline Batch random_batch(int64_t lanes, int64_t length, int64_t vocabulary, uint64_t seed = 1) {
  const auto generator = at::detail::createCPUGenerator(seed);
  const Tensor all = at::randint(0, vocabulary, {lanes, length + 1}, generator, at::TensorOptions().dtype(at::kLong));
  Batch batch;
  batch.tokens = all.slice(1, 0, length).clone();
  batch.facts["target"] = all.slice(1, 1).clone();
  return batch;
}

/// Largest difference, over the largest value of b or 1.
inline double difference(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  const double largest = (a - b).abs().max().item<double>();
  return std::isnan(largest) ? std::numeric_limits<double>::infinity()
                             : largest / std::max(1.0, b.abs().max().item<double>());
}

}  // namespace kinfolk
