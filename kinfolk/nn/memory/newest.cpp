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

Tensor Newest::keep(const Tensor& t, int64_t dim) const {
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
  return t.size(dim) > kept_ + 1 ? last.clone(at::MemoryFormat::Contiguous) : last;
}

}  // namespace kinfolk
