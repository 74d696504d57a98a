// Members that are causal in their values alone.
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// A branch whose Traits say that it is not causal, for one reason: later tokens decide which earlier ones a token
/// meets. Of a later token it reads no value. Such a member is trained on next tokens, as its article does; its
/// loss on a text may gain from what the choice tells of the tokens to come.
struct ReadsPast {
  virtual ~ReadsPast() = default;
  virtual bool reads_past_alone() const = 0;
};

/// Whether all branches of a model are causal, or so but for that choice.
inline bool reads_past_alone(const torch::nn::Module& model) {
  bool found = false;
  for (const auto& part : model.modules(false)) {
    const auto* branch = dynamic_cast<const Branch*>(part.get());
    if (!branch || branch->traits().causal) continue;
    const auto* past = dynamic_cast<const ReadsPast*>(part.get());
    if (!past || !past->reads_past_alone()) return false;
    found = true;
  }
  return found;
}

}  // namespace kinfolk
