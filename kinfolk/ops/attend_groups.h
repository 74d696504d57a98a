// attend_groups: attention between groups of tokens that lie anywhere, of unequal sizes; LSH and routing are it.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kinfolk/kernels/attend_groups.h"

namespace kinfolk {
using at::Tensor;

/// The groups of a lane and head (kernels/attend_groups.h says what each list is).
struct TokenGroups {
  std::vector<kernels::KeyGroup> groups;
  std::vector<int32_t> query, slot, key;  ///< entries, group after group
  std::vector<int32_t> of;                ///< [rounds, L]
  std::vector<int32_t> token_of;          ///< of each slot that is not its token: the token of its query
};

/// What attend_groups is asked for. Groups hold tokens that may meet at all: those of one lane and document, and valid.
struct GroupPlan {
  int64_t batch = 0, heads = 0, length = 0, rounds = 1;
  int64_t first = 0;              ///< tokens from here on ask; those before are met alone
  int64_t slots = 0;              ///< of a lane and head: reads that come out
  std::vector<TokenGroups> each;  ///< lane after lane, head after head
  bool causal = true;             ///< a query meets no token after it
  bool own = true;                ///< and its own one
  bool once = false;              ///< a pair counts once however many rounds it occurs in; slots are tokens
  bool across = false;            ///< a group before may belong to the round before
  double scale = 0;               ///< of the products; 0: 1/sqrt(d)
};

struct GroupRead {
  Tensor out;  ///< [B, H, slots, e]; 0 where nothing was met
  Tensor lse;  ///< [B, H, slots], log of the normaliser, -inf where nothing was met; no gradient
};

/// out_s = softmax over all pairs (i, j) of slot s of scale q_i . k_j, of v_j: the queries of a group meet the keys of
/// it and of the group before it. q [B, H, L - first, d], k [B, H, L, d], v [B, H, L, e], all of tokens. Gradients
/// reach q, k and v; memory is linear in the entries. float32 and half types by a kernel in float32, double by loops;
/// one thread a lane and head.
GroupRead attend_groups(const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::shared_ptr<const GroupPlan>& plan);

/// The tokens that may meet: of each lane its documents, of each document its valid tokens in order.
using Sequences = std::vector<std::vector<std::vector<int32_t>>>;
/// valid bool [B, L] and document int64 [B, L], or undefined.
Sequences sequences_of(int64_t batch, int64_t length, const Tensor& valid, const Tensor& document);

/// How sorted tokens are cut into groups.
struct Cut {
  int64_t chunk = 64;    ///< tokens of a chunk
  bool same = true;      ///< only tokens of one code meet; else the code but sorts
  bool by_code = false;  ///< chunks are counted within each code: no later token moves them
  enum class Wrap {
    none,
    round,
    all
  } wrap = Wrap::none;  ///< what the first chunk has before it: nothing, the last of
                        ///< its round, or the last of the round before (cyclic)
};
/// The groups of LSH attention (Kitaev et al. 2020): in each round the tokens of a sequence are sorted by code, stably,
/// and cut into chunks; a token meets those of its chunk and of the one before. code int64 [B, H, R, L], at least 0;
/// those of invalid tokens are not looked at. Slots are tokens from plan.first on, which is 0 but for chunks `by_code`.
/// Fills each, rounds, slots, across of the plan.
void sort_groups(const Tensor& code, const Sequences& sequences, const Cut& cut, GroupPlan& plan);

/// The groups of routing (Roy et al. 2021): of each sequence and centroid the w tokens of largest affinity, queries and
/// keys each; `top` w, or for 0 the tokens over the centroids, rounded up. affinities [B, H, K, L]; of equal ones the
/// earlier token. Slots are entries. Fills each, rounds, slots of the plan.
void top_groups(const Tensor& of_queries, const Tensor& of_keys, const Sequences& sequences, int64_t top,
                GroupPlan& plan);
/// Reads of slots [B, H, slots, e] brought to their tokens [B, H, L, e]: their sum, or their mean; 0 where there is
/// none.
Tensor combine_groups(const Tensor& read, const GroupPlan& plan, bool mean);

}  // namespace kinfolk
