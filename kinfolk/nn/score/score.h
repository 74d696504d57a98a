// A score step as a component: what is added to, or done to, the scores of an attention branch.
#pragma once
#include "kinfolk/core/registry.h"
#include "kinfolk/nn/context.h"
#include "kinfolk/nn/family.h"
#include "kinfolk/ops/attend.h"

namespace kinfolk {

struct Score : torch::nn::Module, ScoreStep {
  using ScoreStep::apply;                         // not torch::nn::Module::apply
  virtual bool relative() const { return true; }  ///< a shift of all positions changes no score
  virtual void add_losses(Pass& /*pass*/) {}      ///< once a call of the branch
  /// What the step needs of each query besides q: so many columns, which stand behind those of q in Tile::q. One step
  /// of a branch may ask.
  virtual int64_t query_columns() const { return 0; }
  /// They, from the branch's input x [B, L, D], once a call: [B, H, L, columns], float32 or wider.
  virtual Tensor of_queries(const Tensor& /*x*/, Pass& /*pass*/) { return {}; }
};

// Filled in nn/kin.cpp.
template <>
Registry<Score>& registry<Score>();

}  // namespace kinfolk
