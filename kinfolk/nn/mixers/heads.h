// What mixers with heads and a carried state share.
#pragma once
#include <string>

#include "kinfolk/nn/family.h"
#include "kinfolk/ops/scan_lanes.h"

namespace kinfolk {

/// Heads of a mixer: `asked`, or those of the size when 0; they must divide the width.
int64_t head_count(int64_t asked, const Context& context);
/// [B, L, H d] -> [B, H, L, d]
Tensor to_heads(const Tensor& x, int64_t heads);
/// [B, H, L, d] -> [B, L, H d]
Tensor from_heads(const Tensor& x);
/// Which tokens a scan takes in, and where it starts anew.
inline ScanLanes lanes_of(const Pass& pass) { return {pass.valid, pass.first}; }
/// The named tensor of a state; undefined without a state, or before it has one.
Tensor carried(const State* state, const std::string& name);
/// Whether a call may write the new state into the named tensor: no gradient is wanted, and nobody else holds it or a
/// view of it. To be asked before `carried`, which holds it.
bool owned(const State* state, const std::string& name);
/// Options of a zero state: float32, or double for double models.
at::TensorOptions state_options(at::TensorOptions like);

}  // namespace kinfolk
