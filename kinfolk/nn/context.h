// What a component is built with besides its own options.
#pragma once
#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/core/registry.h"
#include "kinfolk/core/value.h"

namespace kinfolk {
using at::Tensor;

/// Sizes of a model: recipes say what makes the member, these say how large it is.
struct Size {
  int64_t depth = 4;         ///< layers
  int64_t width = 128;       ///< D
  int64_t heads = 4;         ///< H
  int64_t feed = 512;        ///< hidden width of a feed-forward branch
  int64_t vocabulary = 256;  ///< V
  int64_t context = 512;     ///< tokens of a training sequence
  double dropout = 0.0;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("depth", depth, "layers", at_least(1));
    visit("width", width, "model width D", at_least(1));
    visit("heads", heads, "query heads H", at_least(1));
    visit("feed", feed, "hidden width of a feed-forward branch", at_least(1));
    visit("vocabulary", vocabulary, "token ids V", at_least(2));
    visit("context", context, "tokens of a training sequence", at_least(1));
    visit("dropout", dropout, "share of activations dropped in training", between(0, 0.95));
  }
};

/// What an attention branch tells the components it is made of.
struct Heads {
  int64_t count = 0, groups = 0;  ///< H query heads, G key/value heads
  int64_t width = 0;              ///< d
  double scale = 0;               ///< of the dot product
  bool causal = true;             ///< the pattern sees no future
  bool relative = true;           ///< the pattern looks at distances alone
  int64_t horizon = -1;           ///< newest keys that a query can see, its own included; -1: all
  int64_t value_width = 0;        ///< of the values, where it is not d
  /// Of the keys that are kept beside those of all tokens (Eyes::prepare_keys): the newest tokens that a query meets
  /// them of, its own included.
  std::vector<int64_t> near = {};
};

/// Handed down while a model is built. A meta device builds without memory: how budgets count parameters.
struct Context {
  Size size;
  at::TensorOptions like;   ///< type and device of the parameters
  at::Generator generator;  ///< of the initial values; undefined: the default one
  Value let;                ///< names of the recipe
  int64_t layer = 0;        ///< index of the layer being built
  std::string path;         ///< where in the recipe, for messages
  std::map<std::string, std::shared_ptr<torch::nn::Module>>* shared = nullptr;  ///< components with `share = "name"`
  Tensor tied = {};  ///< [V, D] the input's table, for a head that shares it; undefined: none

  Heads heads = {};  ///< of the attention branch being built

  Context at(const std::string& deeper) const {
    Context c = *this;
    c.path = path.empty() ? deeper : path + "." + deeper;
    return c;
  }
};

/// A parameter of the given sizes, normal with this standard deviation (0: zeros), drawn from the context's generator.
Tensor draw_parameter(const Context& context, at::IntArrayRef sizes, double deviation);
/// A constant parameter.
Tensor fill_parameter(const Context& context, at::IntArrayRef sizes, double value);

/// The place where the component with `share = "name"` is kept (empty at first). Refuses the name for other options
/// than those it was first used with.
std::shared_ptr<torch::nn::Module>& shared_place(const Context& context, const Value& share, const Value& table,
                                                 const std::string& path);

/// With `share = "name"` the first component of that name is made, the others are the same instance.
template <class Base>
template <class T>
std::shared_ptr<Base> Registry<Base>::make(const Value& table, const Context& context, const std::string& path,
                                           const std::vector<const char*>& reserved) {
  Context inner = context;
  inner.path = path;
  const Value* share = context.shared ? table.find("share") : nullptr;
  if (!share) return std::make_shared<T>(read_options<typename T::Options>(table, path, &context.let, reserved), inner);
  std::vector<const char*> others = reserved;
  others.push_back("share");
  auto& kept = shared_place(context, *share, table, path);
  if (!kept) kept = std::make_shared<T>(read_options<typename T::Options>(table, path, &context.let, others), inner);
  return std::dynamic_pointer_cast<T>(kept);
}

}  // namespace kinfolk
