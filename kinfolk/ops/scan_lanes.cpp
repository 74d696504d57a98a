#include "kinfolk/ops/scan_lanes.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Tensor borders(const ScanLanes& lanes) {
  if (!lanes.first.defined() || !lanes.valid.defined()) return lanes.first;
  return lanes.first.logical_and(lanes.valid);
}

Tensor mask_heads(const Tensor& t, const ScanLanes& lanes) {
  if (!lanes.valid.defined()) return t;
  Tensor mask = lanes.valid.logical_not().unsqueeze(1);  // [B, 1, L]
  while (mask.dim() < t.dim()) mask = mask.unsqueeze(-1);
  return t.masked_fill(mask, 0);
}

Tensor first_of(const Tensor& t, int64_t dim, int64_t n) { return t.size(dim) == n ? t : t.narrow(dim, 0, n); }

at::ScalarType scan_type(const Tensor& t) { return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

Chunks::Chunks(int64_t length, int64_t chunk)
    : length(length), size(std::max<int64_t>(1, std::min(length, chunk))), count((length + size - 1) / size) {
  if (chunk < 1) fail("[scan.chunk] expected at least 1; found ", chunk);
}

Chunks Chunks::exactly(int64_t length, int64_t size) {
  Chunks chunks(std::max(length, size), size);
  chunks.length = length;
  chunks.count = (length + size - 1) / size;
  return chunks;
}

Tensor Chunks::cut(const Tensor& t, double fill) const {
  const int64_t missing = count * size - length;
  std::vector<int64_t> shape{t.size(0) * t.size(1), count, size};
  Tensor filled = t;
  if (missing > 0) {
    std::vector<int64_t> pad(2 * (t.dim() - 2), 0);
    pad.back() = missing;
    filled = at::constant_pad_nd(t, pad, fill);
  }
  for (int64_t i = 3; i < t.dim(); i++) shape.push_back(t.size(i));
  return filled.reshape(shape).contiguous();
}

Tensor Chunks::join(const Tensor& t, int64_t batch) const {
  std::vector<int64_t> shape{batch, t.size(0) / batch, count * size};
  for (int64_t i = 3; i < t.dim(); i++) shape.push_back(t.size(i));
  return first_of(t.reshape(shape), 2, length);
}

ChunkBorders chunk_borders(const Tensor& border, const Chunks& chunks, int64_t heads, at::ScalarType type) {
  if (!border.defined()) return {};
  const Tensor cut = chunks.cut(border.to(at::kLong).unsqueeze(1));      // [B, n, C]
  const Tensor part = cut.cumsum(-1);                                    // documents since the start
  const Tensor same = part.unsqueeze(-1).eq(part.unsqueeze(-2)).tril();  // [B, n, C, C]
  const auto spread = [&](const Tensor& t) { return t.to(type).repeat_interleave(heads, 0); };
  const Tensor end = part.narrow(-1, chunks.size - 1, 1);  // [B, n, 1]
  return {spread(same), spread(part.eq(0).unsqueeze(-1)), spread(part.eq(end).unsqueeze(-1)),
          spread(end.eq(0).unsqueeze(-1))};
}

}  // namespace kinfolk
