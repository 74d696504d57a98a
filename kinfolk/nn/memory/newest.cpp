#include "kinfolk/nn/memory/newest.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Newest::Newest(const Tensor& at, int64_t capacity, bool gaps) : kept_(capacity < 0 ? at.size(1) : capacity) {
  if (kept_ > at.size(1)) fail("[memory] expected at least ", kept_, " columns; found ", at.size(1));
  if (!gaps) return;
  const Tensor filled = at.ge(0);
  if (capacity < 0) kept_ = at.numel() == 0 ? 0 : filled.sum(1).max().item<int64_t>();
  const Tensor order = filled.to(at::kChar).argsort(/*stable=*/true, /*dim=*/1, /*descending=*/false);
  order_ = order.narrow(1, at.size(1) - kept_, kept_);
}

Tensor Newest::keep(const Tensor& t, int64_t dim) const { return take(t, dim, 0); }

Tensor Newest::keep_room(const Tensor& t, int64_t dim) const { return take(t, dim, 1); }

Tensor Newest::take(const Tensor& t, int64_t dim, int64_t spare) const {
  if (order_.defined()) {
    std::vector<int64_t> shape(t.dim(), 1);
    shape[0] = order_.size(0);
    shape[dim] = kept_;
    std::vector<int64_t> full = t.sizes().vec();
    full[dim] = kept_;
    return t.gather(dim, order_.view(shape).expand(full));
  }
  const Tensor last = t.narrow(dim, t.size(dim) - kept_, kept_);
  // A narrow view would hold the memory of the whole call.
  return t.size(dim) > kept_ + spare ? last.clone(at::MemoryFormat::Contiguous) : last;
}

Tensor emptied(const Tensor& at, int64_t lane, int64_t position) {
  Tensor out = at.clone(at::MemoryFormat::Contiguous);
  Tensor row = out.select(0, lane);
  row.masked_fill_(row.ge(position), -1);
  return out;
}

std::string missing(const Tensor& at, int64_t lane, int64_t from, int64_t to) {
  from = std::max<int64_t>(from, 0);
  if (from >= to) return "";
  const Tensor row = at.select(0, lane), kept = row.masked_select(row.ge(0));
  const int64_t oldest = kept.numel() > 0 ? kept.min().item<int64_t>() : to;
  if (oldest <= from) return "";
  return text("position ", to, " would need the keys from ", from, " on, and those before ", oldest, " were dropped");
}

}  // namespace kinfolk
