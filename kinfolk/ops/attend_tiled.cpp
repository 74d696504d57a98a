// The tiled plain path: any device, type, bands, score steps and pattern. Forward keeps out and lse only; backward
// makes each tile of scores again. With p = exp(s - lse): dV = p^T dO, ds = p (dO V^T - rowsum(dO out) + dlse).
#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/ops/attend_tiles.h"

namespace kinfolk {
namespace {

/// q of every band of a block of queries, the heads of a group under each other.
std::vector<Tensor> grouped_queries(const AttendCall& call, const Tiles& tiles, const std::vector<Tensor>& inputs,
                                    const TileAt& t) {
  std::vector<Tensor> q;
  for (size_t b = 0; b < call.bands.size(); ++b) q.push_back(grouped(tiles.rows(inputs[b], t), call.groups));
  return q;
}

/// Sums of weights [B, H, n, m] by the row of their pair.  [B, H, n, rows]
Tensor by_row(const Tensor& p, const Tensor& row, int64_t rows) {
  return at::zeros({p.size(0), p.size(1), p.size(2), rows}, p.options()).scatter_add_(-1, row.expand_as(p), p);
}

Read forward(AttendCall& call, const std::vector<Tensor>& inputs) {
  const Tiles tiles(call, inputs);
  const Places at{call};
  const auto options = inputs[0].options();
  Read read;
  read.out = at::zeros({call.batch, call.heads, call.length, call.value_width}, options);
  read.lse = at::full({call.batch, call.heads, call.length}, -INFINITY, options.dtype(tiles.type()));
  std::vector<Tensor> prepared;
  if (!call.score.empty()) prepared.assign(inputs.begin() + static_cast<int64_t>(at.prepared()), at.end(inputs));
  for (int64_t block = 0; block < call.layout.query_blocks(); ++block) {
    const auto all = tiles.of_block(block);
    if (all.empty()) continue;
    const auto q = grouped_queries(call, tiles, inputs, all[0]);
    const Tensor q_raw = call.score.empty() ? Tensor() : tiles.rows(inputs[at.q_raw()], all[0]);
    Tensor highest, sum, out;
    for (const TileAt& t : all) {
      const auto made = tiles.scores(t, q);
      Tensor scores = tiles.steps(made.raw, q_raw, made.distance, t, prepared);
      if (made.visible.defined()) scores = scores.masked_fill(made.visible.logical_not(), -INFINITY);
      Tensor top = scores.amax(-1, true);  // [B, H, n, 1]
      if (highest.defined()) top = at::maximum(top, highest);
      const Tensor shift = top.masked_fill(top == -INFINITY, 0);
      Tensor p = (scores - shift).exp_();
      const Tensor total = p.sum(-1, true);
      const Tensor kept = tiles.kept(t, p);
      if (kept.defined()) p = p * kept;
      const Tensor v = tiles.columns(inputs[at.v(t.set)], t);
      Tensor read_v = at::matmul(grouped(p, call.groups), v).view({call.batch, call.heads, t.rows, -1});
      if (const Tensor row = tiles.value_rows(t); row.defined()) {
        read_v = read_v + at::matmul(by_row(p, row, inputs[call.values_input].size(0)), inputs[call.values_input]);
      }
      if (highest.defined()) {
        const Tensor shrink = (highest - shift).exp_();
        sum = sum * shrink + total;
        out = out * shrink + read_v;
      } else {
        sum = total, out = read_v;
      }
      highest = top;
    }
    const TileAt& t = all[0];
    read.out.narrow(2, t.row, t.rows).copy_(out / sum.masked_fill(sum == 0, 1));
    read.lse.narrow(2, t.row, t.rows).copy_((highest.masked_fill(highest == -INFINITY, 0) + sum.log()).squeeze(-1));
  }
  return read;
}

/// The score steps of one tile with their graph, from which the gradients of what they read are taken.
struct StepGraph {
  StepGraph(const AttendCall& call, const Tiles& tiles, const std::vector<Tensor>& inputs, const Tiles::Scores& made,
            const Tensor& q_raw, const TileAt& t, const std::vector<Tensor>& sums)
      : call(call), tile(t), result(made.raw) {
    if (call.score.empty()) return;
    const at::AutoGradMode on(true);
    const size_t base = Places{call}.q_raw();
    const auto leaf = [&](const Tensor& x, size_t place, bool wanted) {
      const Tensor own = x.detach();
      if (wanted) {
        own.requires_grad_(true);
        leaves.push_back(own);
        where.push_back(place);
      }
      return own;
    };
    const Tensor scores = leaf(made.raw, kScores, true);
    const Tensor q = leaf(q_raw, base, sums[base].defined());
    std::vector<Tensor> prepared;
    for (size_t i = base + 1; i < base + 1 + Places{call}.prepared_count(); ++i)
      prepared.push_back(leaf(inputs[i], i, sums[i].defined()));
    graph = tiles.steps(scores, q, made.distance, t, prepared);
    result = graph.detach();
  }

  /// Gradient of the raw scores; adds those of q_raw and of what was prepared to `sums`.
  Tensor back(const Tensor& ds, std::vector<Tensor>& sums) const {
    if (call.score.empty()) return ds;
    if (!graph.requires_grad()) return at::zeros_like(ds);
    const auto grads = torch::autograd::grad({graph}, leaves, {ds}, std::nullopt, false, true);
    Tensor raw = at::zeros_like(ds);
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      if (where[i] == kScores) {
        raw = grads[i];
      } else if (where[i] == Places{call}.q_raw()) {
        sums[where[i]].narrow(2, tile.row, tile.rows).add_(grads[i]);
      } else {
        sums[where[i]].add_(grads[i]);
      }
    }
    return raw;
  }

  static constexpr size_t kScores = SIZE_MAX;
  const AttendCall& call;
  const TileAt& tile;
  Tensor result, graph;
  std::vector<Tensor> leaves;
  std::vector<size_t> where;
};
void block_backward(const AttendCall& call, const Tiles& tiles, const std::vector<Tensor>& inputs, const Tensor& out,
                    const Tensor& lse, const Tensor& grad_out, const Tensor& grad_lse, int64_t block,
                    std::vector<Tensor>& sums) {
  const Places at{call};
  const auto all = tiles.of_block(block);
  if (all.empty()) return;
  const TileAt& first = all[0];
  const auto q = grouped_queries(call, tiles, inputs, first);
  const Tensor q_raw = call.score.empty() ? Tensor() : tiles.rows(inputs[at.q_raw()], first);
  const Tensor z = lse.narrow(2, first.row, first.rows).unsqueeze(-1);  // [B, H, n, 1]
  const Tensor empty = z == -INFINITY, shift = z.masked_fill(empty, 0);
  Tensor offset = at::zeros_like(shift), d_out;
  if (grad_out.defined()) {
    const Tensor d = tiles.rows(grad_out, first);
    offset = (d * tiles.rows(out, first)).sum(-1, true);
    d_out = grouped(d, call.groups);
  }
  if (grad_lse.defined()) {
    offset = offset - grad_lse.narrow(2, first.row, first.rows).unsqueeze(-1).masked_fill(empty, 0);
  }
  for (const TileAt& t : all) {
    auto made = tiles.scores(t, q);
    StepGraph graph(call, tiles, inputs, made, q_raw, t, sums);
    Tensor scores = graph.result;
    if (made.visible.defined()) scores = scores.masked_fill(made.visible.logical_not(), -INFINITY);
    const Tensor p = (scores - shift).exp_(), kept = tiles.kept(t, p);
    Tensor ds = -offset;
    if (d_out.defined()) {
      const Tensor weights = grouped(kept.defined() ? p * kept : p, call.groups);
      if (Tensor& dv = sums[at.v(t.set)]; dv.defined()) {
        dv.narrow(2, t.column, t.columns).add_(at::matmul(weights.transpose(2, 3), d_out));
      }
      const Tensor v = tiles.columns(inputs[at.v(t.set)], t);
      Tensor dp = at::matmul(d_out, v.transpose(2, 3)).view(p.sizes());
      if (const Tensor row = tiles.value_rows(t); row.defined()) {
        const Tensor &rows = inputs[call.values_input], d = tiles.rows(grad_out, t);
        dp = dp + at::matmul(d, rows.t()).gather(-1, row.expand_as(dp));
        if (Tensor& sum = sums[call.values_input]; sum.defined()) {
          const Tensor bins = by_row(kept.defined() ? p * kept : p, row, rows.size(0));
          sum.add_(at::matmul(bins.flatten(0, 2).t(), d.flatten(0, 2)));
        }
      }
      if (kept.defined()) dp = dp * kept;
      ds = ds + dp;
    }
    ds = graph.back(p * ds, sums);
    for (const auto& [band, inside] : made.bands) {
      const Tensor part = inside.defined() ? ds.masked_fill(inside.logical_not(), 0) : ds;
      const Tensor scaled = grouped(part * call.bands[band].scale, call.groups);
      if (Tensor& dq = sums[at.q(band)]; dq.defined()) {
        const Tensor k = tiles.columns(inputs[at.k(t.set, band)], t);
        dq.narrow(2, t.row, t.rows).add_(at::matmul(scaled, k).view({call.batch, call.heads, t.rows, call.width}));
      }
      if (Tensor& dk = sums[at.k(t.set, band)]; dk.defined()) {
        dk.narrow(2, t.column, t.columns).add_(at::matmul(scaled.transpose(2, 3), q[band]));
      }
    }
  }
}

std::vector<Tensor> backward(const AttendCall& call, const std::vector<Tensor>& inputs, const Read& read,
                             const Tensor& d_out, const Tensor& d_lse, const std::vector<bool>& wanted) {
  const Tiles tiles(call, inputs);
  std::vector<Tensor> sums(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if (wanted[i]) sums[i] = at::zeros(inputs[i].sizes(), inputs[i].options().dtype(tiles.type()));
  for (int64_t block = 0; block < call.layout.query_blocks(); ++block)
    block_backward(call, tiles, inputs, read.out, read.lse, d_out, d_lse, block, sums);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (sums[i].defined()) sums[i] = sums[i].to(inputs[i].scalar_type());
  return sums;
}

}  // namespace

Read attend_tiled(const std::shared_ptr<AttendCall>& call, const std::vector<Tensor>& inputs) {
  return attend_node(call, inputs, forward, backward);
}

}  // namespace kinfolk
