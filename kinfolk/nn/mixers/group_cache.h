// The keys of earlier calls, for mixers whose tokens meet by a code.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/ops/attend_groups.h"

namespace kinfolk {

/// State: k, v [B, H, C, d], code int64 [B, H, R, C], at int64 [B, C] (position, -1: empty), document int64 [B, C], the
/// newest at the right end. It grows; invalid tokens never enter. Appended as in memory/cache.
struct GroupCache {
  int64_t heads = 0, width = 0, rounds = 1;

  State start(int64_t batch, at::TensorOptions like) const;
  std::string truncate(State& state, int64_t lane, int64_t position) const;

  /// What may be met, the call's tokens at the end.
  struct Met {
    Tensor k, v, code;
    Sequences sequences;
    int64_t first;  ///< column of the call's first token
  };
  /// The call's keys, values [B, H, L, d] and codes behind those of the state, which takes them in.
  Met meet(const Tensor& k, const Tensor& v, const Tensor& code, const Pass& pass, State& state) const;
};

}  // namespace kinfolk
