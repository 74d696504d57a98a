#include "kinfolk/nn/memory/compress_most_used.h"

namespace kinfolk {

Slots MostUsed::compress(const Leaving& leaving) const {
  const Tensor& rows = leaving.rows;
  const int64_t length = rows.size(1), slots = length / rate_;
  const Tensor place = at::arange(length, leaving.count.options());
  const Tensor there = place.lt(leaving.count.unsqueeze(1));  // [M, P]
  // The most used first, then stably by document, the newest first, then what is not there.
  Tensor order = leaving.usage.detach().argsort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  if (leaving.document.defined()) {
    const Tensor document = leaving.document.gather(1, order);
    order = order.gather(1, document.argsort(/*stable=*/true, /*dim=*/1, /*descending=*/true));
  }
  const Tensor missing = there.logical_not().to(at::kChar).gather(1, order);
  order = order.gather(1, missing.argsort(/*stable=*/true, /*dim=*/1, /*descending=*/false));
  // Slots beyond count / c go behind the others.
  const Tensor kept = at::arange(slots, leaving.count.options());
  const Tensor many = leaving.count.div(rate_, "floor").unsqueeze(1);
  const Tensor chosen = at::where(kept.lt(many), order.narrow(1, 0, slots), length);
  const Tensor at = std::get<0>(chosen.sort(1)).clamp_max(length - 1);  // [M, P / c]
  return {rows.gather(1, at.unsqueeze(-1).expand({-1, -1, rows.size(2)})), at, at, at};
}

}  // namespace kinfolk
