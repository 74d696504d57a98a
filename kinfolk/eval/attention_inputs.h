// What the attention layers of a trained model look at: its queries, keys and values of a text.
#pragma once
#include <string>
#include <vector>

#include "kinfolk/nn/model.h"

namespace kinfolk {

/// Of one layer, after positions: out_i = softmax_j(q_i . k_j / sqrt(d)) v_j over j <= i.
struct AttentionInputs {
  std::string place;  ///< in the model, such as layers.0.branches.0
  Tensor q, k, v;     ///< float [B, H, L, d]; keys and values that heads share, once for each
};

struct WatchedAttention {
  std::vector<AttentionInputs> layers;  ///< in order
  std::vector<std::string> left_out;    ///< other attention layers, and why
};

/// The inputs of all layers of plain causal softmax attention while the model reads tokens int64 [B, L] from nothing: a
/// causal pattern without limit, no score steps, keys that are the same for all queries, and no memory but the cache.
WatchedAttention watch_attention(Model& model, const Tensor& tokens);

}  // namespace kinfolk
