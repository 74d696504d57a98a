// What is known about a batch besides its tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace kinfolk {
using at::Tensor;

/// Tokens and facts; components ask for facts by name. Facts in use:
///   "valid"   bool  [B, L]  real tokens, anywhere (left or right padding, gaps); absent: all are
///   "segment" int64 [B, L]  documents; no sight and no state across a change of its value
///   "target"  int64 [B, L]  what the objective wants at each position; -100: nothing
///   "prefix"  int64 [B]     keys that everybody sees: positions below it (pattern prefix(@prefix))
///   "global"  int64 [B, n]  positions that see and are seen by all, -1: none (pattern global(@global))
struct Batch {
  Tensor tokens;  ///< int64 [B, L]
  std::map<std::string, Tensor> facts;

  Tensor fact(const std::string& name) const {  ///< undefined when absent
    const auto found = facts.find(name);
    return found == facts.end() ? Tensor() : found->second;
  }
};

}  // namespace kinfolk
