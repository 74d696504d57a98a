// The laws that every member obeys, checked on the machine at hand: small models in double precision, random tokens.
#pragma once
#include <string>
#include <vector>

#include "kinfolk/nn/recipe.h"

namespace kinfolk {

struct LawResult {
  std::string law;
  bool holds = false, applies = true;
  double difference = 0;  ///< the largest seen
  std::string note;       ///< why it does not apply
};

/// split: f(x1 ++ x2) = f(x1) ++ f(x2) for every split, in values and gradients; causality; forms; padding; lanes;
/// shift; bounded state; saved state. A law that the member's traits exclude does not apply, and says why.
std::vector<LawResult> check_laws(const Recipe& recipe, uint64_t seed = 1);

}  // namespace kinfolk
