// A decoder built from a recipe: input, layers run by a depth, head.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/nn/family.h"
#include "kinfolk/nn/layer.h"
#include "kinfolk/nn/recipe.h"

namespace kinfolk {

class Model : public torch::nn::Module {
 public:
  Model(const Recipe& recipe, const Context& context);
  /// The usual way: parameters of this type and device, initial values from the seed alone.
  static std::shared_ptr<Model> make(const Recipe& recipe, const Size& size, uint64_t seed = 1,
                                     at::TensorOptions like = at::TensorOptions());

  Traits traits() const;  ///< of all parts together
  State start(int64_t batch, at::TensorOptions like = at::TensorOptions()) const;
  /// Fills the pass (position, valid, document, first) from its batch and state, and runs input and layers. [B, L, D]
  /// after the last norm
  Tensor hidden(Pass& pass);
  Tensor forward(Pass& pass);  ///< [B, L, V]: softmax of it is p(next token); rows of invalid tokens are 0
  /// Without gradients or randomness beyond `seed`: scores of a batch, with a carried state or none.
  Tensor score(const Batch& batch, State* state = nullptr, uint64_t seed = 0, int64_t newest = 0);

  /// What can be done with a state (see Keeper), for all parts together. `truncate` changes nothing where it returns
  /// why it cannot, with the place in the recipe.
  std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest = 0) const;
  int64_t most_bytes(int64_t batch, int64_t newest = 0) const;
  std::string keeps() const;  ///< what its state is made of, in words

  double flops(int64_t length, int64_t from = 0) const;  ///< forward, one lane, tokens [from, from + length)
  int64_t parameter_count() const;                       ///< trainable, each tensor once
  /// The trainable parameters by name, each tensor once: what an optimiser steps and a checkpoint stores. (A shared
  /// component stands below each of its owners, so parameters() lists it several times.)
  std::vector<std::pair<std::string, Tensor>> weights() const;
  const Recipe& recipe() const { return recipe_; }
  const Size& size() const { return size_; }
  Head& head() { return *head_; }
  /// Puts a head around the one there is: `wrap` is given it and returns the one that reads from now on.
  void wrap_head(const std::function<std::shared_ptr<Head>(std::shared_ptr<Head> head)>& wrap);
  ImageGrid grid() const { return input_->grid(); }  ///< of the images it reads; none: it reads any sequence
  const std::map<std::string, double>& loss_weights() const { return loss_weights_; }  ///< [losses] of the recipe
  /// The resolved tree, parameters, work, state bytes per lane (at 0, `context` and 10 x `context` tokens, by running
  /// them), the operator of each branch and why not fused.
  std::string explain();

  bool checkpointing = false;  ///< recompute each layer in backward

 private:
  void prepare(Pass& pass) const;        ///< position, valid, document, first
  void advance(Pass& pass) const;        ///< the counters of the state
  Tensor finish(const Tensor& x) const;  ///< the last norm
  Recipe recipe_;
  Size size_;
  std::shared_ptr<Input> input_;
  std::vector<std::shared_ptr<Layer>> layers_;
  std::shared_ptr<Depth> depth_;
  std::shared_ptr<Norm> last_norm_;
  std::shared_ptr<Head> head_;
  std::map<std::string, double> loss_weights_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> shared_;
};

/// The size whose width (a multiple of 8 x heads), then feed width, gives the recipe `parameters` trainable ones within
/// 1 %. Depth and heads stay. Throws Error when it cannot.
Size solve_budget(const Recipe& recipe, Size size, int64_t parameters);

/// Bytes that one lane carries once its state has stopped growing. Refuses a member that does not stream, or whose
/// state grows with the text.
int64_t settled_state_bytes(const Recipe& recipe, const Size& size);

/// The recipe with the one option turned that decides the bytes of its state (Branch::state_knob; for attention over a
/// window the recipe's let.window or let.memory), so that a lane carries `bytes` within 10 %. Throws Error with the
/// nearest reach when it cannot, or a sentence for a member without such an option.
Recipe solve_state_budget(Recipe recipe, const Size& size, int64_t bytes);

}  // namespace kinfolk
