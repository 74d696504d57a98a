// The fused path: one band, a pattern that is an interval of distances, scores that change by a constant table at
// most. Pieces of queries, each against the keys that it may meet, go through ATen's fused kernel with an additive
// mask that is rebuilt in the backward pass, so nothing of size L x L is kept.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "kinfolk/ops/attend_masks.h"

namespace kinfolk {
namespace {

/// The kernel reads rows of unit stride.
Tensor unit_rows(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

std::optional<Tensor> optional(const Tensor& mask) {
  return mask.defined() ? std::optional<Tensor>(mask) : std::nullopt;
}

/// Keys (offset 1) or values (offset 0) of a piece, those of all sets after each other.
Tensor of_piece(const std::vector<Tensor>& inputs, const Piece& piece, size_t offset) {
  std::vector<Tensor> parts;
  for (size_t s = 0; s < piece.keys.size(); ++s)
    if (piece.keys[s].second > 0) {
      const Tensor& whole = inputs[1 + 2 * s + offset];
      parts.push_back(
          piece.keys[s].second == whole.size(2) ? whole : whole.narrow(2, piece.keys[s].first, piece.keys[s].second));
    }
  return unit_rows(parts.size() == 1 ? parts[0] : at::cat(parts, 2));
}

Tensor rows_of(const Tensor& x, const AttendCall& call, const Piece& piece) {
  return piece.length == call.length ? x : x.narrow(2, piece.begin, piece.length);
}

Read forward(AttendCall& call, const std::vector<Tensor>& inputs) {
  const Tensor q = unit_rows(inputs[0]);
  const auto type = score_type(q);
  Masks masks(call, type);
  Read read;
  const bool whole = call.pieces.size() == 1;
  if (!whole || call.pieces[0].columns == 0) {
    read.out = at::empty({call.batch, call.length, call.heads, call.width}, q.options()).transpose(1, 2);
    read.lse = at::empty({call.batch, call.heads, call.length}, q.options().dtype(type));
  }
  for (const Piece& piece : call.pieces) {
    if (piece.columns == 0) {
      call.empty_rows = true;
      rows_of(read.out, call, piece).zero_();
      rows_of(read.lse, call, piece).fill_(-INFINITY);
      continue;
    }
    const Mask& mask = masks.of(piece);
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        rows_of(q, call, piece), of_piece(inputs, piece, 1), of_piece(inputs, piece, 0), 0.0, piece.causal,
        optional(mask.values), call.bands[0].scale);
    if (mask.empty.defined()) {  // the kernel gives them out 0 and a finite lse
      call.empty_rows = true;
      lse = lse.masked_fill(mask.empty, -INFINITY);
    }
    if (whole) return {out, lse};
    rows_of(read.out, call, piece).copy_(out);
    rows_of(read.lse, call, piece).copy_(lse);
  }
  return read;
}

struct Gradients {
  Tensor q, k, v;
};

/// Of one piece. A gradient of lse enters as one more column: values of 1 whose output gradient it is.
Gradients piece_backward(const AttendCall& call, const Piece& piece, const Mask& mask, const Tensor& d_out,
                         const Tensor& d_lse, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                         const Tensor& lse) {
  const auto run = [&](const Tensor& g, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& o) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(g, a, b, c, o, lse, 0.0, piece.causal,
                                                                    optional(mask.values), call.bands[0].scale);
  };
  if (!d_lse.defined()) {
    auto [dq, dk, dv] = run(unit_rows(d_out), q, k, v, out);
    return {dq, dk, dv};
  }
  const auto widen = [](const Tensor& x, double value) { return at::constant_pad_nd(x, {0, 1}, value); };
  const Tensor g = at::cat({d_out, d_lse.unsqueeze(-1).to(d_out.scalar_type())}, -1);
  auto [dq, dk, dv] = run(g, widen(q, 0), widen(k, 0), widen(v, 1), widen(out, 0));
  return {dq.narrow(-1, 0, call.width), dk.narrow(-1, 0, call.width), dv.narrow(-1, 0, call.width)};
}

std::vector<Tensor> backward(const AttendCall& call, const std::vector<Tensor>& inputs, const Read& read,
                             const Tensor& d_out_or_none, const Tensor& d_lse_or_none, const std::vector<bool>&) {
  const Tensor q = unit_rows(inputs[0]);
  const Tensor d_out = d_out_or_none.defined() ? d_out_or_none : at::zeros_like(read.out);
  Tensor lse = read.lse, d_lse = d_lse_or_none;
  if (call.empty_rows) {
    const Tensor empty = lse.isinf();
    lse = lse.masked_fill(empty, 0);
    if (d_lse.defined()) d_lse = d_lse.masked_fill(empty, 0);
  }
  Masks masks(call, lse.scalar_type());
  std::vector<Tensor> sums;
  for (const Piece& piece : call.pieces) {
    if (piece.columns == 0) continue;
    const auto part = [&](const Tensor& x) { return x.defined() ? rows_of(x, call, piece) : x; };
    const Tensor k = of_piece(inputs, piece, 1), v = of_piece(inputs, piece, 0);
    const Gradients d = piece_backward(call, piece, masks.of(piece), part(d_out), part(d_lse), part(q), k, v,
                                       part(read.out), part(lse));
    if (call.pieces.size() == 1 && inputs.size() == 3 && piece.columns == inputs[1].size(2)) return {d.q, d.v, d.k};
    if (sums.empty()) {
      for (const Tensor& x : inputs) sums.push_back(at::zeros(x.sizes(), x.options().dtype(lse.scalar_type())));
    }
    part(sums[0]).copy_(d.q);
    int64_t column = 0;
    for (size_t s = 0; s < piece.keys.size(); ++s) {
      const auto [first, n] = piece.keys[s];
      if (n == 0) continue;
      sums[1 + 2 * s].narrow(2, first, n).add_(d.v.narrow(2, column, n));
      sums[2 + 2 * s].narrow(2, first, n).add_(d.k.narrow(2, column, n));
      column += n;
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (sums.size() <= i) sums.push_back(at::zeros_like(inputs[i]));
    sums[i] = sums[i].to(inputs[i].scalar_type());
  }
  return sums;
}

}  // namespace

Read attend_fused(const std::shared_ptr<AttendCall>& call, const std::vector<Tensor>& inputs) {
  return attend_node(call, inputs, forward, backward);
}

}  // namespace kinfolk
