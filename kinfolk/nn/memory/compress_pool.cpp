#include "kinfolk/nn/memory/compress_pool.h"

namespace kinfolk {

Slots own_rows(const Tensor& rows, const Leaving& leaving, int64_t rate) {
  const int64_t many = leaving.rows.size(0), slots = leaving.rows.size(1) / rate;
  const Tensor first = (at::arange(slots, leaving.count.options()) * rate).expand({many, slots});
  const Tensor last = first + (rate - 1);
  return {rows, last, first, last};
}

Slots MeanPool::compress(const Leaving& leaving) const {
  return own_rows(leaving.rows.unflatten(1, {-1, rate_}).mean(2), leaving, rate_);  // [M, P / c, D]
}

Slots MaxPool::compress(const Leaving& leaving) const {
  return own_rows(leaving.rows.unflatten(1, {-1, rate_}).amax(2), leaving, rate_);
}

}  // namespace kinfolk
