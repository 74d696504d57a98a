#include "kinfolk/nn/qk/rotation.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/tables.h"

namespace kinfolk {

Tensor Rotation::turn(const Tensor& x, const Tensor& p) const {
  const int64_t whole = x.size(-1), turned = width == 0 ? whole : width;
  if (turned > whole || turned % 2 != 0) {
    fail("[rope.rotary] expected an even number of dimensions, at most the head width ", whole, "; found ", turned);
  }
  const at::ScalarType exact = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor angle = phases(p, turned, base).unsqueeze(1);  // [B or 1, 1, L, turned/2]
  const Tensor cosine = angle.cos().to(exact), sine = angle.sin().to(exact);
  const Tensor part = x.narrow(-1, 0, turned).to(exact);
  Tensor out;
  if (interleaved) {
    const Tensor pairs = part.unflatten(-1, {turned / 2, 2});
    const Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
    out = at::stack({a * cosine - b * sine, b * cosine + a * sine}, -1).flatten(-2);
  } else {
    const Tensor a = part.narrow(-1, 0, turned / 2), b = part.narrow(-1, turned / 2, turned / 2);
    out = at::cat({a * cosine - b * sine, b * cosine + a * sine}, -1);
  }
  out = out.to(x.scalar_type());
  return turned == whole ? out : at::cat({out, x.narrow(-1, turned, whole - turned)}, -1);
}

Tensor turning_positions(const Tensor& at) {
  const bool same =
      at.size(0) <= 1 || at.stride(0) == 0 || (!at.is_meta() && at.narrow(0, 0, 1).expand_as(at).equal(at));
  return (same ? at.narrow(0, 0, std::min<int64_t>(at.size(0), 1)) : at).to(at::kDouble);
}

}  // namespace kinfolk
