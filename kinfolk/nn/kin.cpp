// The lists: every component by its name in a recipe, one list a kind. A new component is one line here.
#include "kinfolk/nn/depth/once.h"
#include "kinfolk/nn/depth/reversible.h"
#include "kinfolk/nn/depth/universal.h"
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/feed/chunked.h"
#include "kinfolk/nn/feed/glu.h"
#include "kinfolk/nn/feed/mlp.h"
#include "kinfolk/nn/feed/separable.h"
#include "kinfolk/nn/head/knn_lm.h"
#include "kinfolk/nn/head/lm.h"
#include "kinfolk/nn/head/spalm.h"
#include "kinfolk/nn/input/image.h"
#include "kinfolk/nn/input/positions.h"
#include "kinfolk/nn/input/tokens.h"
#include "kinfolk/nn/length/linear.h"
#include "kinfolk/nn/length/windows.h"
#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/memory/compress_conv.h"
#include "kinfolk/nn/memory/compress_most_used.h"
#include "kinfolk/nn/memory/compress_pool.h"
#include "kinfolk/nn/memory/compressive.h"
#include "kinfolk/nn/memory/knn.h"
#include "kinfolk/nn/memory/segment.h"
#include "kinfolk/nn/memory/sinks.h"
#include "kinfolk/nn/mixers/attention.h"
#include "kinfolk/nn/mixers/convolution.h"
#include "kinfolk/nn/mixers/delta.h"
#include "kinfolk/nn/mixers/gated_delta.h"
#include "kinfolk/nn/mixers/gated_retention.h"
#include "kinfolk/nn/mixers/gau.h"
#include "kinfolk/nn/mixers/gla.h"
#include "kinfolk/nn/mixers/hgrn.h"
#include "kinfolk/nn/mixers/linear.h"
#include "kinfolk/nn/mixers/linformer.h"
#include "kinfolk/nn/mixers/lsh_attention.h"
#include "kinfolk/nn/mixers/lstm.h"
#include "kinfolk/nn/mixers/mamba.h"
#include "kinfolk/nn/mixers/mamba2.h"
#include "kinfolk/nn/mixers/performer.h"
#include "kinfolk/nn/mixers/recurrent.h"
#include "kinfolk/nn/mixers/reflection.h"
#include "kinfolk/nn/mixers/retention.h"
#include "kinfolk/nn/mixers/rfa.h"
#include "kinfolk/nn/mixers/rg_lru.h"
#include "kinfolk/nn/mixers/routing_attention.h"
#include "kinfolk/nn/mixers/rwkv6.h"
#include "kinfolk/nn/mixers/vq_attention.h"
#include "kinfolk/nn/qk/key_norm.h"
#include "kinfolk/nn/qk/log_n.h"
#include "kinfolk/nn/qk/longrope.h"
#include "kinfolk/nn/qk/qk_bias.h"
#include "kinfolk/nn/qk/rerope.h"
#include "kinfolk/nn/qk/rope.h"
#include "kinfolk/nn/qk/rope_mixed_base.h"
#include "kinfolk/nn/qk/rope_ntk.h"
#include "kinfolk/nn/qk/rope_pi.h"
#include "kinfolk/nn/qk/sink_rope.h"
#include "kinfolk/nn/qk/xl_bias.h"
#include "kinfolk/nn/qk/xpos.h"
#include "kinfolk/nn/qk/yarn.h"
#include "kinfolk/nn/residual/add.h"
#include "kinfolk/nn/score/alibi.h"
#include "kinfolk/nn/score/distance.h"
#include "kinfolk/nn/score/dynamic_span.h"
#include "kinfolk/nn/score/kerple.h"
#include "kinfolk/nn/score/shaw.h"
#include "kinfolk/nn/score/span.h"
#include "kinfolk/nn/score/t5.h"
#include "kinfolk/nn/score/xl.h"

namespace kinfolk {

template <>
Registry<Branch>& registry<Branch>() {
  static Registry<Branch> list = [] {
    Registry<Branch> kin("branch");
    kin.add<Attention>("attention", "softmax attention over heads, any pattern and memory (Vaswani et al. 2017)");
    kin.add<VqAttention>("vq", "attention over quantised keys, old ones known by code (Lingle 2023)");
    kin.add<LshAttention>("lsh", "attention among tokens of one hash, the Reformer's (Kitaev et al. 2020)");
    kin.add<RoutingAttention>("routing", "attention among tokens of one centroid, and in a window (Roy et al. 2021)");
    kin.add<Gau>("gau", "gated attention unit: attention and feed-forward in one branch (Hua et al. 2022)");
    kin.add<LinearAttention>("linear", "linear attention over a feature map (Katharopoulos et al. 2020)");
    kin.add<Retention>("retention", "multi-scale retention of RetNet, one decay a head (Sun et al. 2023)");
    kin.add<GatedRetention>("gated_retention", "one decay a token and head, from the token (Peng et al. 2021)");
    kin.add<Gla>("gla", "gated linear attention, one decay a token and key channel (Yang et al. 2023)");
    kin.add<Reflection>("reflection", "a state gated by an outer product, decays of key and of value channels");
    kin.add<Hgrn>("hgrn", "a gated sum in each channel, no matrix state (Qin et al. 2023)");
    kin.add<Rwkv6>("rwkv6", "decays by key channel, a read before the write (Peng et al. 2024)");
    kin.add<Delta>("delta", "the delta rule over unit keys, DeltaNet (Schlag et al. 2021, Yang et al. 2024)");
    kin.add<GatedDelta>("gated_delta", "the delta rule over a decaying state, Gated DeltaNet (Yang et al. 2024)");
    kin.add<Mamba>("mamba", "a diagonal recurrence that chooses what it keeps, Mamba (Gu and Dao 2023)");
    kin.add<Mamba2>("mamba2", "the selective recurrence with one decay a head, Mamba-2 (Dao and Gu 2024)");
    kin.add<Convolution>("short_conv", "a short causal convolution by channel (Arora et al. 2023)");
    kin.add<Performer>("performer", "softmax attention over random features (Choromanski et al. 2021)");
    kin.add<Linformer>("linformer", "keys and values projected along the length, not causal (Wang et al. 2020)");
    kin.add<Rfa>("rfa", "random feature attention with a gate (Peng et al. 2021)");
    kin.add<RgLru>("rg_lru", "one gated decay a channel, the recurrent block of Griffin (De et al. 2024)");
    kin.add<Recurrent>("recurrent", "a recurrent network over a cell, one step a token (Elman 1990)");
    kin.add<Lstm>("lstm", "the gated recurrent network (Hochreiter and Schmidhuber 1997, Gers et al. 2000)");
    kin.add<Mlp>("mlp", "two matrices and a non-linearity (Vaswani et al. 2017)");
    kin.add<Glu>("glu", "gated feed-forward, SwiGLU by default (Shazeer 2020)");
    kin.add<Separable>("separable", "feed-forward of two causal separable convolutions (Dehghani et al. 2019)");
    kin.add<Chunked>("chunked", "a feed-forward in chunks along the length, to save memory (Kitaev et al. 2020)");
    kin.add<PositionBranch>("position", "positions added in every layer (Al-Rfou et al. 2018)");
    return kin;
  }();
  return list;
}

template <>
Registry<QkStep>& registry<QkStep>() {
  static Registry<QkStep> list = [] {
    Registry<QkStep> kin("qk step");
    kin.add<Rope>("rope", "rotary positions (Su et al. 2021)");
    kin.add<RopePi>("rope_pi", "RoPE with positions pressed together by a factor (Chen et al. 2023)");
    kin.add<RopeNtk>("rope_ntk", "RoPE with a longer base, plain or fixed (bloc97 2023, Su Jianlin 2023)");
    kin.add<RopeNtkDynamic>("rope_ntk_dynamic", "RoPE whose base grows with the position of the query (emozilla 2023)");
    kin.add<RopeMixedBase>("rope_mixed_base", "RoPE with a mixed base (Su Jianlin 2023)");
    kin.add<Yarn>("yarn", "RoPE interpolated by parts, with a temperature; Llama 3's scaling too (Peng et al. 2023)");
    kin.add<LongRope>("longrope", "RoPE with a factor for each pair, short and long (Ding et al. 2024)");
    kin.add<Xpos>("xpos", "rotation whose pairs also fade with distance (Sun et al. 2022)");
    kin.add<Rerope>("rerope", "rotary positions rectified beyond a window (Su Jianlin 2023)");
    kin.add<LeakyRerope>("leaky_rerope", "rotary positions that grow slower beyond a window (Su Jianlin 2023)");
    kin.add<SinkRope>("sink_rope", "rotary positions by place in a cache of first and newest keys (Xiao et al. 2023)");
    kin.add<LogN>("log_n", "scores grow with the logarithm of the position (Su Jianlin 2021)");
    kin.add<KeyNorm>("key_norm", "keys of norm one, no 1/sqrt(d) (Su Jianlin 2023)");
    kin.add<QkBias>("qk_bias", "a bias a head on queries and keys before the rotation (Su Jianlin 2023)");
    kin.add<XlBias>("xl_bias", "content bias u of Transformer-XL (Dai et al. 2019)");
    return kin;
  }();
  return list;
}

template <>
Registry<Score>& registry<Score>() {
  static Registry<Score> list = [] {
    Registry<Score> kin("score step");
    kin.add<Alibi>("alibi", "a linear bias on distance, one slope a head (Press et al. 2022)");
    kin.add<T5>("t5", "a learned bias for each bucket of distances (Raffel et al. 2020)");
    kin.add<Shaw>("shaw", "learned vectors of the distance on keys and values (Shaw et al. 2018)");
    kin.add<Kerple>("kerple", "a learned kernel of the distance, logarithm or power (Chi et al. 2022)");
    kin.add<Distance>("distance", "relu of the score times a learned curve over distance (Wu et al. 2021)");
    kin.add<Span>("span", "each head learns how far back it looks (Sukhbaatar et al. 2019)");
    kin.add<DynamicSpan>("dynamic_span",
                         "each token says for each head how far back it looks (Sukhbaatar et al. 2019)");
    kin.add<Xl>("xl", "relative positions of Transformer-XL (Dai et al. 2019)");
    return kin;
  }();
  return list;
}

template <>
Registry<Cell>& registry<Cell>() {
  static Registry<Cell> list = [] {
    Registry<Cell> kin("cell");
    kin.add<GeneralCell>("general", "f_A(h) + f_B(x), read by f_C: the form that all recurrent networks are cases of");
    kin.add<TanhCell>("tanh", "tanh of the input and the hidden vector before (Elman 1990)");
    kin.add<GruCell>("gru", "gated recurrent unit: a reset and an update gate (Cho et al. 2014)");
    return kin;
  }();
  return list;
}

template <>
Registry<Compression>& registry<Compression>() {
  static Registry<Compression> list = [] {
    Registry<Compression> kin("compression");
    kin.add<MaxPool>("max_pool", "the largest of a few inputs, by channel (Rae et al. 2019)");
    kin.add<MeanPool>("mean_pool", "the mean of a few inputs (Rae et al. 2019)");
    kin.add<Conv>("conv", "a convolution as wide as its step (Rae et al. 2019)");
    kin.add<DilatedConv>("dilated_conv", "a convolution whose taps have gaps (Rae et al. 2019)");
    kin.add<MostUsed>("most_used", "the inputs that received most attention, as they are (Rae et al. 2019)");
    return kin;
  }();
  return list;
}

template <>
Registry<LengthProjection>& registry<LengthProjection>() {
  static Registry<LengthProjection> list = [] {
    Registry<LengthProjection> kin("length projection");
    kin.add<LinearLength>("linear", "a learned matrix over the places of a sequence (Wang et al. 2020)");
    kin.add<MeanLength>("mean_pool", "the mean of each few rows (Wang et al. 2020)");
    kin.add<MaxLength>("max_pool", "the largest of each few rows, by channel (Wang et al. 2020)");
    kin.add<ConvLength>("conv", "a convolution as wide as its step, the same for all heads (Wang et al. 2020)");
    return kin;
  }();
  return list;
}

template <>
Registry<Memory>& registry<Memory>() {
  static Registry<Memory> list = [] {
    Registry<Memory> kin("memory");
    kin.add<Cache>("cache", "keys and values of all that the pattern can still see");
    kin.add<Knn>("knn", "the nearest of many kept keys and values beside a local read (Wu et al. 2022)");
    kin.add<Segment>("segment", "segment-level recurrence over detached inputs (Dai et al. 2019)");
    kin.add<Sinks>("sinks", "the first keys and the newest ones, a bounded cache (Xiao et al. 2023)");
    kin.add<Compressive>("compressive", "what leaves the segment memory is compressed and kept (Rae et al. 2019)");
    return kin;
  }();
  return list;
}

template <>
Registry<Residual>& registry<Residual>() {
  static Registry<Residual> list = [] {
    Registry<Residual> kin("residual");
    kin.add<Add>("add", "the sum (He et al. 2016)");
    return kin;
  }();
  return list;
}

template <>
Registry<Depth>& registry<Depth>() {
  static Registry<Depth> list = [] {
    Registry<Depth> kin("depth");
    kin.add<Once>("once", "every layer once, in order (Vaswani et al. 2017)");
    kin.add<Reversible>("reversible", "two streams, whose layers are undone in backward (Gomez et al. 2017)");
    kin.add<Universal>("universal", "one layer group again and again, halting by ACT or fixed (Dehghani et al. 2019)");
    return kin;
  }();
  return list;
}

template <>
Registry<Input>& registry<Input>() {
  static Registry<Input> list = [] {
    Registry<Input> kin("input");
    kin.add<Tokens>("tokens", "token embedding, with or without positions (Vaswani et al. 2017)");
    kin.add<Image>("image", "pixels with their row and column, in raster order or block by block (Parmar et al. 2018)");
    return kin;
  }();
  return list;
}

template <>
Registry<Head>& registry<Head>() {
  static Registry<Head> list = [] {
    Registry<Head> kin("head");
    kin.add<LanguageModel>("lm", "scores of the next token (Press and Wolf 2017 for the shared table)");
    kin.add<KnnLm>("knn_lm", "wraps a head: nearest stored contexts say what followed (Khandelwal et al. 2020)");
    kin.add<Spalm>("spalm", "wraps a head: retrieved tokens mixed in by a learned gate (Yogatama et al. 2021)");
    return kin;
  }();
  return list;
}

}  // namespace kinfolk
