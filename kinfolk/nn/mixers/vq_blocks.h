// Which tokens of a call belong to which block, lane by lane, and when a block's keys become known by code alone.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kinfolk {
using at::Tensor;

/// One block of every lane, its own block in each: first keys leave for the sums, then queries read those.
struct BlockStep {
  Tensor keys;     ///< int64 [B, R] columns that leave; undefined: none do in any lane
  Tensor taken;    ///< bool [B, R]: of the sums' document (else the column says nothing)
  Tensor keep;     ///< bool [B]: the sums go on; false: they start anew, with another document
  Tensor queries;  ///< int64 [B, n] tokens of the call; undefined: none in any lane
  Tensor seen;     ///< bool [B, n]: a query of the sums' document (else the entry says nothing)
};

/// The steps of a call, from the block of each lane's first token to that of the token to come after its last one.
struct BlockPlan {
  std::vector<BlockStep> steps;
  Tensor of;     ///< int64 [B, 1]: the document of the sums after the call
  Tensor order;  ///< int64 [B, L]: where a token stands when the queries of all steps are put behind each other
};

/// at, document int64 [B, C + L]: C kept columns, then the call's; at -1: empty or invalid. Blocks of R positions. Keys
/// of block b leave when the lane comes to block b + 2. of int64 [B, 1]: the document of the sums before the call.
BlockPlan plan_blocks(const Tensor& at, const Tensor& document, int64_t kept, int64_t block, const Tensor& of);

}  // namespace kinfolk
