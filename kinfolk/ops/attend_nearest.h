// attend_nearest: each query meets the few keys that it has the largest products with, of a memory too large to meet.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace kinfolk {
using at::Tensor;

/// SlotRange of a lane's memory that its queries may meet: first, first + 1, ..., going round after the last slot.
struct SlotRange {
  int64_t first = 0, count = 0;
};

/// The slots of a memory sorted into buckets of like keys, for an approximate search.
struct Buckets {
  Tensor code;     ///< int32 [B, G, C]: the bucket of each slot, below K
  Tensor centre;   ///< [B, G, K, d]
  int64_t probes;  ///< buckets that a query looks into: those whose centres it has the largest products with
  std::vector<bool> ready = {};  ///< one a lane: false: every slot is met
};

struct NearestRead {
  Tensor out;    ///< [B, H, L, e]; 0 where a query meets nothing
  Tensor index;  ///< int64 [B, H, L, n] slots, largest product first; -1: no further one
};

/// index of NearestRead: for q [B, H, L, d] and keys [B, G, C, d] the n slots of largest q . k; of equal products the
/// smaller slot. Exact without buckets: products are made a block of keys at a time, none is kept but the n largest of
/// each query. float32 by a kernel, other types in double. No gradient.
Tensor largest_products(const Tensor& q, const Tensor& k, const std::vector<SlotRange>& seen, int64_t n,
                        const Buckets* buckets = nullptr);

/// out_i = sum over the n keys j with the largest q_i . k_j of softmax_j(q_i . k_j) v_j (Wu et al. 2022): a scale
/// belongs into q. v [B, G, C, e]; H a multiple of G; seen: one a lane. Gradients reach q, and k and v where they want
/// one; which keys are met is a constant in them.
NearestRead attend_nearest(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<SlotRange>& seen,
                           int64_t n, const Buckets* buckets = nullptr);

}  // namespace kinfolk
