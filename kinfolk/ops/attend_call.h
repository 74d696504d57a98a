// What the paths of attend share: one checked call. Not a public header.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kinfolk/kernels/attend_pairs.h"
#include "kinfolk/ops/attend.h"
#include "kinfolk/ops/attend_layout.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {

/// A stretch of queries with, of each key set, the keys that it may meet.
struct Piece {
  int64_t begin = 0, length = 0;
  std::vector<std::pair<int64_t, int64_t>> keys;  ///< first key and number of keys of each set
  int64_t columns = 0;                            ///< keys of all sets together
  bool masked = true;
  bool causal = false;  ///< the lower triangle, without a mask
};

/// Everything of a call but the differentiable tensors; kept for its backward pass.
struct AttendCall {
  struct Range {
    double scale;
    int64_t nearest, farthest;  ///< both included
  };
  int64_t batch, heads, groups, length, width, value_width;
  std::shared_ptr<const Pattern> pattern;
  std::vector<Range> bands;
  Tensor q_at, q_document;
  std::vector<Keys> keys;  ///< without k and v
  std::vector<ScoreStep*> score;
  std::vector<std::shared_ptr<ScoreStep>> owned;
  std::vector<size_t> prepared;  ///< tensors of each step
  double dropout = 0;
  uint64_t seed = 0;
  AttendPlan::Names names;
  int64_t query_tile, key_tile;
  Layout layout;

  // The kernel's path only: places among the inputs, 0 where there is none.
  std::shared_ptr<const kernels::AttendPattern> shown = {};  ///< the pattern, where it is no interval
  std::shared_ptr<const kernels::PairTiles> pairs = {};      ///< of it, from the forward pass, where they are small
  size_t table_input = 0;                                    ///< [H or 1, distances]
  size_t factor_input = 0;                                   ///< [H or 1, distances]
  bool relu = false;                                         ///< before the factor
  size_t by_input = 0;                                       ///< p [B, H, L, c], then r [H, distances, c]
  double by_scale = 1;
  size_t span_input = 0;  ///< [B, H, L]
  double ramp = 1;
  bool own = true;
  size_t values_input = 0;  ///< [distances, e], of the plain path too
  int64_t values_lowest = 0;

  // The kernel's path and that of ATen's kernel.
  int64_t lowest = 0;                                 ///< distance of the first entry of tables
  int64_t nearest = INT64_MIN, farthest = INT64_MAX;  ///< of pattern and band together

  // The path of ATen's kernel only.
  std::vector<Piece> pieces;
  Tensor table;             ///< [H or 1, distances] of all score steps, or undefined
  bool empty_rows = false;  ///< some query saw nothing
};

/// [B, H, n, d] as [B, G, H/G * n, d]: the queries of a group under each other.
Tensor grouped(const Tensor& x, int64_t groups);

/// inputs: q of each band, then of each set v and its k of each band, then (with score steps) q_raw and what the steps
/// prepared.
Read attend_tiled(const std::shared_ptr<AttendCall>& call, const std::vector<Tensor>& inputs);

/// float32 on the CPU. inputs: q of each band, then of each set v and its k of each band, then tables as the call says.
Read attend_kernel(const std::shared_ptr<AttendCall>& call, const std::vector<Tensor>& inputs);

/// inputs: q, then of each set v and k.
Read attend_fused(const std::shared_ptr<AttendCall>& call, const std::vector<Tensor>& inputs);

/// Gradients of the inputs that are wanted (the others may stay undefined). d_out or d_lse may be undefined, not both.
using AttendBackward = std::vector<Tensor> (*)(const AttendCall& call, const std::vector<Tensor>& inputs,
                                               const Read& read, const Tensor& d_out, const Tensor& d_lse,
                                               const std::vector<bool>& wanted);
/// Runs `forward` and, where an input wants a gradient, makes its result a node of the graph with `backward`.
Read attend_node(const std::shared_ptr<AttendCall>& call, const std::vector<Tensor>& inputs,
                 Read (*forward)(AttendCall&, const std::vector<Tensor>&), AttendBackward backward);

/// [B, H, n, d] as [B, G, H/G * n, d]: the queries of a group under each other.
Tensor grouped(const Tensor& x, int64_t groups);

/// float for half types, else the type of x.
at::ScalarType score_type(const Tensor& x);

/// The keys a block of the layout holds in the fused path.
constexpr int64_t kPieceKeys = 64;
/// Splits a call of the fused path into pieces.
void make_pieces(AttendCall& call);

}  // namespace kinfolk
