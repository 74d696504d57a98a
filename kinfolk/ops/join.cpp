#include "kinfolk/core/errors.h"
#include "kinfolk/ops/attend.h"

namespace kinfolk {

Read join(const Read& a, const Read& b) {
  if (a.out.sizes() != b.out.sizes() || a.lse.sizes() != b.lse.sizes()) {
    fail("[join] expected reads of one shape; found out ", a.out.sizes(), " and ", b.out.sizes(), ", lse ",
         a.lse.sizes(), " and ", b.lse.sizes());
  }
  // The shift cancels, so it is a constant; rows that saw nothing on either side shift by 0.
  Tensor shift = at::maximum(a.lse, b.lse).detach();
  shift = shift.masked_fill(shift.isinf(), 0);
  const Tensor left = (a.lse - shift).exp(), right = (b.lse - shift).exp();
  const Tensor sum = left + right, none = sum == 0;
  const Tensor safe = sum.masked_fill(none, 1);
  Read out;
  out.out = ((left / safe).unsqueeze(-1) * a.out + (right / safe).unsqueeze(-1) * b.out).to(a.out.scalar_type());
  out.lse = (safe.log() + shift).masked_fill(none, -INFINITY);
  return out;
}

}  // namespace kinfolk
