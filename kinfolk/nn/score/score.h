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
};

// Filled in nn/kin.cpp.
template <>
Registry<Score>& registry<Score>();

}  // namespace kinfolk
