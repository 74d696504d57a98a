// Attention between groups of tokens, one lane and head at a time, float32: forward and backward.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// A group: its queries and its keys, consecutive entries of the lists of a lane and head.
struct KeyGroup {
  int32_t query = 0, queries = 0;  ///< first entry and how many
  int32_t key = 0, keys = 0;
  int32_t before = -1;  ///< the group whose keys its queries meet too; -1: none
  int32_t round = 0;    ///< groups of one round hold each token at most once as a key
};

/// Of a lane and head, with its entries as tokens. Queries meet the keys of their group and of the one before it.
struct GroupLists {
  const KeyGroup* groups = nullptr;
  int64_t count = 0;
  const int32_t* query = nullptr;  ///< tokens, group after group
  const int32_t* slot = nullptr;   ///< where the read of each goes: reads of one slot share a softmax
  const int32_t* key = nullptr;
  const int32_t* of = nullptr;  ///< [rounds, tokens] the group that has the token as a key; -1: none
  int64_t tokens = 0, rounds = 1, slots = 0;
  int64_t first = 0;    ///< the token of the first row of q: those before it are keys alone
  bool causal = true;   ///< a key is met where its token is not after the query's
  bool own = true;      ///< a query meets its own token
  bool once = false;    ///< a pair that occurs several times counts once (slots are tokens)
  bool across = false;  ///< with once: a group before may be one of another round
};

/// out_s = sum softmax(scale q . k) v over all pairs of the queries of slot s, lse_s the log of their normaliser: 0 and
/// -inf where there are none. Rows lie together.
struct AttendGroups {
  GroupLists lists;
  int64_t width = 0, value_width = 0;
  float scale = 1;
  const float *q = nullptr, *k = nullptr, *v = nullptr;  ///< [tokens, d], q without the first, v [tokens, e]
  float *out = nullptr, *lse = nullptr;                  ///< [slots, e], [slots]
  // Backward: out and lse are read, the others added to.
  const float* d_out = nullptr;                       ///< [slots, e]
  float *dq = nullptr, *dk = nullptr, *dv = nullptr;  ///< null: not wanted
};
void attend_groups_forward(const AttendGroups& a);
void attend_groups_backward(const AttendGroups& a);

/// Whether the query at token i in a group of `round` meets the key of token j there, `behind`: in its own group rather
/// than the one before.
inline bool meets(const GroupLists& a, int32_t i, int32_t j, int32_t round, bool behind) {
  if (a.causal ? j > i : false) return false;
  if (j == i && !a.own) return false;
  if (!a.once) return true;
  const auto of = [&](int64_t r, int32_t token) { return a.of[r * a.tokens + token]; };
  const auto rounds = static_cast<int32_t>(a.rounds);
  const auto before = [&](int64_t r) {
    const int32_t g = of(r, i);
    return g < 0 ? -1 : a.groups[g].before;
  };
  for (int32_t r = 0; r < round; ++r) {
    const int32_t mine = of(r, i), earlier = before(r);
    if (mine >= 0 && of(r, j) == mine) return false;
    if (earlier >= 0 && of(r, j) == earlier) return false;
    if (a.across && earlier >= 0 && of((r + rounds - 1) % rounds, j) == earlier) return false;
  }
  if (!a.across || !behind) return true;
  const int32_t earlier = before(round);
  return earlier < 0 || (of(round, j) != earlier && of((round + rounds - 1) % rounds, j) != earlier);
}

}  // namespace kinfolk::kernels
